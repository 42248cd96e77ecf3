// Draws paired differences with their intervals around zero.
import { percent, signed, svg } from "/assets/common.js";

const WIDE = 340, ROW = 42, LEFT = 46, RIGHT = 62;

/** `scores`: name → {a, b, difference, low, high} as shares; shown in points. */
export function forest(scores) {
  const rows = Object.entries(scores);
  const farthest = Math.max(0.01, ...rows.flatMap(([, score]) => [Math.abs(score.low), Math.abs(score.high)])) * 1.05;
  const x = (value) => LEFT + ((value / farthest + 1) / 2) * (WIDE - LEFT - RIGHT);
  const high = rows.length * ROW + 18;
  const drawing = svg("svg", { class: "forest", viewBox: `0 0 ${WIDE} ${high}`, role: "img", "aria-label": words(rows) });
  rows.forEach(([name, score], n) => {
    const y = n * ROW + 15;
    const sure = { higher: "for-b", lower: "for-a" }[score.verdict] ?? "";
    const group = svg("g", { class: sure });
    group.append(
      svg("line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: y, y2: y }),
      svg("line", { class: "zero", x1: x(0), x2: x(0), y1: y - 9, y2: y + 9 }),
      svg("path", { class: "span", d: `M${x(score.low)} ${y - 6}v12m0 -6H${x(score.high)}m0 -6v12` }),
      svg("circle", { class: "dot", cx: x(score.difference), cy: y, r: 4 }),
      text(name, 0, y + 4), text(signed(100 * score.difference), WIDE, y + 4, "end"),
      text(`A ${percent(score.a)} · B ${percent(score.b)} · ${signed(100 * score.low)} to ${signed(100 * score.high)}`, (LEFT + WIDE - RIGHT) / 2, y + 23, "middle", "dimmed"));
    drawing.append(group);
  });
  drawing.append(text("A better", LEFT, high - 3, "start", "dimmed"), text("B better", WIDE - RIGHT, high - 3, "end", "dimmed"));
  return drawing;
}

function text(words, x, y, anchor = "start", look = "") {
  return svg("text", { x, y, "text-anchor": anchor, class: look }, words);
}

const words = (rows) => rows.map(([name, score]) =>
  `${name}: A ${percent(score.a)} %, B ${percent(score.b)} %, difference ${signed(100 * score.difference)} points, interval ${signed(100 * score.low)} to ${signed(100 * score.high)}`).join(". ");
