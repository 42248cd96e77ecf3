// A plane of points with a rectangle that chooses some of them, by mouse, finger or keys.
import { h } from "/assets/common.js";
import { colour, context, whenThemed } from "/assets/canvas.js";

const WIDE = 560, HIGH = 460, EDGE = 14;
const STEP = 0.025; // of the plane, a press of an arrow key

export class Plane {
  /** `points` are [x, y]; `brushed(chosen, finished)` gets the places of points inside the rectangle. */
  constructor(points, label, brushed) {
    Object.assign(this, { label, brushed, chosen: new Set(), box: null, own: false });
    const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
    const [left, right, low, high] = [least(xs), most(xs), least(ys), most(ys)];
    this.shares = points.map(([x, y]) => [(x - left) / (right - left || 1), 1 - (y - low) / (high - low || 1)]);
    this.canvas = h("canvas", { class: "plane", tabindex: "0", role: "application", "aria-roledescription": "plane of points" });
    this.describe();
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    whenThemed(() => this.draw());
  }

  describe() {
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.shares.length} images, ${this.chosen.size} brushed. Arrow keys move a rectangle, plus and minus change its size, Escape lifts it.`);
  }

  where(event) {
    const frame = this.canvas.getBoundingClientRect();
    const within = (value) => Math.min(1, Math.max(0, value));
    const x = ((event.clientX - frame.left) / frame.width) * WIDE, y = ((event.clientY - frame.top) / frame.height) * HIGH;
    return [within((x - EDGE) / (WIDE - 2 * EDGE)), within((y - EDGE) / (HIGH - 2 * EDGE))];
  }

  begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    const from = this.where(event);
    const move = (next) => {
      const to = this.where(next);
      this.box = [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[0], to[0]), Math.max(from[1], to[1])];
      this.brush(next.type === "pointerup");
    };
    const end = (next) => { this.canvas.removeEventListener("pointermove", move); move(next); };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
  }

  key(event) {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    const grow = { "+": 1, "=": 1, "-": -1 }[event.key] ?? 0;
    if (event.key === "Escape") { this.lift(); this.brushed(this.chosen, true); return; }
    if (!dx && !dy && !grow) return;
    event.preventDefault();
    const [x0, y0, x1, y1] = this.box ?? [0.4, 0.4, 0.6, 0.6];
    const half = [Math.max(STEP, (x1 - x0) / 2 + grow * STEP), Math.max(STEP, (y1 - y0) / 2 + grow * STEP)];
    const middle = [clip((x0 + x1) / 2 + dx * STEP), clip((y0 + y1) / 2 + dy * STEP)];
    this.box = [middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]];
    this.brush(true);
  }

  brush(finished) {
    const [x0, y0, x1, y1] = this.box;
    const inside = this.shares.flatMap(([x, y], at) => (x >= x0 && x <= x1 && y >= y0 && y <= y1 ? [at] : []));
    this.brushed(new Set(inside), finished);
  }

  /** Light points; a plane that was not brushed itself loses its own rectangle. */
  light(chosen, own) {
    this.chosen = chosen;
    if (!own) this.box = null;
    this.describe();
    this.draw();
  }

  lift() { this.box = null; this.light(new Set(), true); }

  draw() {
    const drawing = context(this.canvas, WIDE, HIGH);
    const x = (share) => EDGE + share * (WIDE - 2 * EDGE), y = (share) => EDGE + share * (HIGH - 2 * EDGE);
    const dot = (at, radius) => { drawing.beginPath(); drawing.arc(x(this.shares[at][0]), y(this.shares[at][1]), radius, 0, 7); drawing.fill(); };
    const larger = Math.min(2, Math.max(1, WIDE / (this.canvas.clientWidth || WIDE))); // points stay visible on a narrow screen
    drawing.fillStyle = colour("dim");
    drawing.globalAlpha = this.chosen.size ? 0.32 : 0.55;
    this.shares.forEach((_, at) => { if (!this.chosen.has(at)) dot(at, 2.2 * larger); });
    drawing.globalAlpha = 0.9;
    drawing.fillStyle = colour("mark");
    for (const at of this.chosen) dot(at, 3.4 * larger);
    drawing.globalAlpha = 1;
    if (!this.box) return;
    drawing.strokeStyle = colour("ink");
    drawing.setLineDash([5, 4]);
    drawing.strokeRect(x(this.box[0]), y(this.box[1]), x(this.box[2]) - x(this.box[0]), y(this.box[3]) - y(this.box[1]));
    drawing.setLineDash([]);
  }
}

const clip = (share) => Math.min(1, Math.max(0, share));
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
