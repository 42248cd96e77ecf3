// The gate of a fusion: how many dimensions it opens, how far it may turn the embedding, and how far it does.
import { h } from "/assets/common.js";
import { colour, context, short, whenThemed } from "/assets/canvas.js";

const WIDE = 320, HIGH = 150, BOTTOM = 20, TOP = 12;

function histogram({ edges, counts }) {
  const canvas = h("canvas", { role: "img", "aria-label": `Histogram of gate values: ${counts.map((n, at) => `${n} between ${short(edges[at])} and ${short(edges[at + 1])}`).filter((words) => !words.startsWith("0 ")).join(", ")}` });
  whenThemed(() => {
    const drawing = context(canvas, WIDE, HIGH);
    const most = Math.max(1, ...counts), step = WIDE / counts.length;
    drawing.fillStyle = colour("mark");
    counts.forEach((n, at) => {
      const tall = (n / most) * (HIGH - BOTTOM - TOP);
      drawing.fillRect(at * step + 1, HIGH - BOTTOM - tall, step - 2, tall);
    });
    drawing.fillStyle = colour("dim");
    drawing.font = "12px system-ui, sans-serif";
    drawing.fillText(short(edges[0]), 0, HIGH - 5);
    drawing.textAlign = "right";
    drawing.fillText(short(edges[edges.length - 1]), WIDE, HIGH - 5);
    drawing.textAlign = "center";
    drawing.fillText("gate value α", WIDE / 2, HIGH - 5);
  });
  return canvas;
}

export function gatePanel(gate) {
  const degrees = (value) => (value === null || value === undefined ? "none" : `${value.toFixed(1)}°`);
  return h("div", { class: "gate" },
    h("div", {}, h("h3", {}, "Gate of the fusion"), histogram(gate.values_histogram),
      h("p", { class: "small dim" }, "How many dimensions of the embedding have which α: 0 keeps the trunk's value, 1 adds all that the fusion has to add.")),
    h("div", {}, h("dl", { class: "pairs" },
      h("dt", {}, "opened (α above ½)"), h("dd", {}, `${gate.open} of ${gate.dimensions} dimensions`),
      h("dt", {}, "mean α"), h("dd", {}, gate.mean.toFixed(3)),
      h("dt", {}, "turns the embedding by"), h("dd", {}, degrees(gate.angle)),
      h("dt", {}, "bound of that angle"), h("dd", {}, degrees(gate.angle_bound))),
    h("p", { class: "small dim" }, "Widest open: ", gate.largest.map(({ dimension, value }) => `${dimension} (${value.toFixed(2)})`).join(", "))));
}
