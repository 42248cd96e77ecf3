// A small line of one logged number.
import { h } from "/assets/common.js";
import { colour, context, short, ticks, whenThemed } from "/assets/canvas.js";

const WIDE = 340, HIGH = 170, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 22;

/** `points` are [step, value]. */
export function curve(name, points) {
  const [first, final] = [points[0], points[points.length - 1]];
  const canvas = h("canvas", { role: "img", "aria-label": `${name}: ${short(first[1])} at step ${first[0]}, ${short(final[1])} at step ${final[0]}` });
  whenThemed(() => draw(canvas, points));
  return h("figure", {}, canvas, h("figcaption", {}, `${name}: `, h("b", { class: "number" }, short(final[1]))));
}

function draw(canvas, points) {
  const drawing = context(canvas, WIDE, HIGH);
  const values = points.map((point) => point[1]);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const [start, end] = [points[0][0], Math.max(points[0][0] + 1, points[points.length - 1][0])];
  const x = (step) => LEFT + ((step - start) / (end - start)) * (WIDE - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HIGH - TOP - BOTTOM);
  drawing.font = "11.5px system-ui, sans-serif";
  drawing.fillStyle = colour("dim");
  drawing.strokeStyle = colour("line");
  drawing.textAlign = "right";
  const marks = ticks(low, high), digits = new Set(marks.map((mark) => short(mark))).size < marks.length ? 5 : 3; // 2.652 and 2.654
  for (const mark of marks) {
    drawing.beginPath();
    drawing.moveTo(LEFT, y(mark));
    drawing.lineTo(WIDE - RIGHT, y(mark));
    drawing.stroke();
    drawing.fillText(short(mark, digits), LEFT - 6, y(mark) + 4);
  }
  drawing.fillText(short(end), WIDE - RIGHT, HIGH - 6);
  drawing.textAlign = "left";
  drawing.fillText(`step ${short(start)}`, LEFT, HIGH - 6);
  drawing.strokeStyle = colour("mark");
  drawing.lineWidth = 1.8;
  drawing.lineJoin = "round";
  drawing.beginPath();
  points.forEach(([step, value], n) => drawing[n ? "lineTo" : "moveTo"](x(step), y(value)));
  drawing.stroke();
  if (points.length > 1) return;
  drawing.fillStyle = colour("mark");
  drawing.fillRect(x(points[0][0]) - 2, y(points[0][1]) - 2, 5, 5);
}
