// Shows an image as the model expects it: upright, on white, resized with antialiasing, the centre cut out.

const FILTERS = {
  bicubic: [2, (x) => {
    const a = -0.5, t = Math.abs(x);
    if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
  }],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
};

// For each of `count` output pixels: the first input pixel that it sees, and the weights from there on.
function weightsOf(length, count, interpolation) {
  const [reach, filter] = FILTERS[interpolation];
  const scale = length / count, stretch = Math.max(scale, 1), support = reach * stretch;
  return Array.from({ length: count }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5)), end = Math.min(length, Math.trunc(centre + support + 0.5));
    const weights = [];
    for (let at = first; at < end; at++) weights.push(filter((at - centre + 0.5) / stretch));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, weights: weights.map((weight) => weight / sum) };
  });
}

const toByte = (value) => Math.max(0, Math.min(255, Math.round(value)));
const halfToEven = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

// RGBA bytes of a width by height image → planes of red, green and blue, size by size.
export function shown(rgba, width, height, { size, resize, interpolation }) {
  const short = Math.min(width, height);
  const squash = resize === "squash";
  const wide = squash ? size : Math.trunc((size * width) / short), tall = squash ? size : Math.trunc((size * height) / short);
  const left = halfToEven((wide - size) / 2), top = halfToEven((tall - size) / 2);
  const columns = weightsOf(width, wide, interpolation).slice(left, left + size);
  const rows = weightsOf(height, tall, interpolation).slice(top, top + size);
  const planes = new Uint8Array(3 * size * size), across = new Float64Array(height * size);
  for (let colour = 0; colour < 3; colour++) {
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < size; x++) {
        const { first, weights } = columns[x];
        let sum = 0;
        for (let k = 0; k < weights.length; k++) sum += weights[k] * rgba[4 * (y * width + first + k) + colour];
        across[y * size + x] = toByte(sum);
      }
    }
    for (let y = 0; y < size; y++) {
      const { first, weights } = rows[y];
      for (let x = 0; x < size; x++) {
        let sum = 0;
        for (let k = 0; k < weights.length; k++) sum += weights[k] * across[(first + k) * size + x];
        planes[(colour * size + y) * size + x] = toByte(sum);
      }
    }
  }
  return planes;
}

// A file or blob → planes as above. The browser decodes it and applies the orientation that the camera noted.
export async function pixelsOf(blob, spec) {
  const picture = await createImageBitmap(blob, { imageOrientation: "from-image" });
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  return shown(context.getImageData(0, 0, picture.width, picture.height).data, picture.width, picture.height, spec);
}
