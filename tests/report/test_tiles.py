import numpy as np
import simplejpeg

from dinorankclip.report.pictures import FRAME, SIDE, tile


def test_an_image_beyond_the_usual_limit_of_pixels_can_be_shown():
    large = simplejpeg.encode_jpeg(np.full((6000, 9000, 3), 200, np.uint8), quality=50)
    assert tile(large).size == (SIDE + 2 * FRAME,) * 2
