// A square photo with a value or a colour for each patch on top. Mouse and arrow keys choose a patch.
import { h } from "/assets/common.js";
import { colour, context, heat, rgb, whenThemed } from "/assets/canvas.js";

const SIDE = 240;
const COVER = 0.78; // how much of the photo a map hides

export class PatchMap {
  /** `picture` is a decoded image, `grid` [rows, columns]; `chosen(x, y)` gets shares of the square. */
  constructor(picture, grid, label, chosen) {
    Object.assign(this, { picture, grid, label, fills: null, patch: null });
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "patch map" });
    this.note = h("figcaption", {}, label);
    this.figure = h("figure", {}, this.canvas, this.note);
    this.describe(label);
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect();
      chosen((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event, chosen));
    whenThemed(() => this.draw());
  }

  key(event, chosen) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    const [rows, columns] = this.grid;
    const row = Math.min(rows - 1, Math.max(0, Math.floor(this.patch / columns) + down));
    const column = Math.min(columns - 1, Math.max(0, (this.patch % columns) + right));
    chosen((column + 0.5) / columns, (row + 0.5) / rows);
  }

  describe(label) { this.canvas.setAttribute("aria-label", `${label}. Arrow keys choose another patch.`); }

  /** Show numbers: the smallest is dark, the largest bright. */
  values(numbers) {
    const low = Math.min(...numbers), high = Math.max(...numbers);
    this.fills = numbers.map((value) => rgb(heat((value - low) / (high - low || 1)), COVER));
    this.draw();
  }

  /** Show colours [r, g, b] of 0–255. */
  colours(triples) { this.fills = triples.map((triple) => rgb(triple, 0.92)); this.draw(); }

  mark(patch) { this.patch = patch; this.draw(); }

  draw() {
    const drawing = context(this.canvas, SIDE, SIDE);
    const { naturalWidth: wide, naturalHeight: high } = this.picture;
    const side = Math.min(wide, high);
    drawing.drawImage(this.picture, (wide - side) / 2, (high - side) / 2, side, side, 0, 0, SIDE, SIDE);
    const [rows, columns] = this.grid;
    const w = SIDE / columns, t = SIDE / rows;
    this.fills?.forEach((fill, n) => {
      drawing.fillStyle = fill;
      drawing.fillRect((n % columns) * w, Math.floor(n / columns) * t, w + 0.5, t + 0.5);
    });
    if (this.patch === null) return;
    const x = (this.patch % columns) * w, y = Math.floor(this.patch / columns) * t;
    for (const [width, style] of [[5, colour("card")], [2.5, colour("ink")]]) {
      drawing.lineWidth = width;
      drawing.strokeStyle = style;
      drawing.strokeRect(x + 1.5, y + 1.5, w - 3, t - 3);
    }
  }
}
