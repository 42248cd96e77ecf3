// Tables of numbers of a list: bars of utilities, and transitions as colours with a read-out.
import { h } from "/assets/common.js";
import { colour, context, isDark, minus, rgb, short, signedHeat, whenThemed } from "/assets/canvas.js";

const SIDE = 340, EDGE = 44;

export function barTable(title, items, values) {
  const low = Math.min(0, ...values), high = Math.max(0, ...values), span = high - low || 1;
  const rows = items.map((item, at) => {
    const bar = h("span");
    bar.style.marginLeft = `${(100 * (Math.min(0, values[at]) - low)) / span}%`;
    bar.style.width = `${(100 * Math.abs(values[at])) / span}%`;
    return h("tr", {}, h("td", {}, `pair ${item}`), h("td", { class: "wide" }, h("span", { class: "meter" }, bar)), h("td", {}, minus(values[at].toFixed(2))));
  });
  return h("div", {}, h("h3", {}, title), h("table", { class: "bars" }, h("tbody", {}, rows)));
}

/** `cells` has a row for each item just listed and a column for each candidate; null where there is no transition. */
export function matrix(title, items, cells) {
  const n = items.length, step = (SIDE - EDGE) / n;
  const most = Math.max(1e-12, ...cells.flat().filter((cell) => cell !== null).map(Math.abs));
  const at = { row: 0, column: Math.min(1, n - 1) };
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "matrix" });
  const note = h("p", { class: "small dim number", "aria-live": "polite" });
  const draw = () => {
    const drawing = context(canvas, SIDE, SIDE);
    const dark = isDark();
    drawing.font = "11px system-ui, sans-serif";
    cells.forEach((row, r) => row.forEach((cell, c) => {
      drawing.fillStyle = cell === null ? colour("stripe") : rgb(signedHeat(cell / most, dark));
      drawing.fillRect(EDGE + c * step, EDGE + r * step, step - 1, step - 1);
      drawing.strokeStyle = colour("line");
      drawing.strokeRect(EDGE + c * step, EDGE + r * step, step - 1, step - 1);
    }));
    drawing.fillStyle = colour("dim");
    items.forEach((item, place) => {
      drawing.textAlign = "right";
      drawing.fillText(String(item), EDGE - 6, EDGE + place * step + step / 2 + 4);
      drawing.save();
      drawing.translate(EDGE + place * step + step / 2 + 4, EDGE - 6);
      drawing.rotate(-Math.PI / 2);
      drawing.textAlign = "left";
      drawing.fillText(String(item), 0, 0);
      drawing.restore();
    });
    drawing.strokeStyle = colour("ink");
    drawing.lineWidth = 2;
    drawing.strokeRect(EDGE + at.column * step, EDGE + at.row * step, step - 1, step - 1);
  };
  const tell = () => {
    const cell = cells[at.row][at.column];
    note.textContent = `After pair ${items[at.row]}, pair ${items[at.column]}: ${cell === null ? "no transition to itself or to a listed item" : minus(cell.toFixed(4))}. Rust makes an item likelier, blue less likely; the strongest colours are ±${short(most)}.`;
    canvas.setAttribute("aria-label", `${title}. ${note.textContent} Arrow keys choose another cell.`);
    draw();
  };
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    at.row = Math.min(n - 1, Math.max(0, at.row + down));
    at.column = Math.min(n - 1, Math.max(0, at.column + right));
    tell();
  });
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect(), scale = SIDE / box.width;
    const place = (offset) => Math.min(n - 1, Math.max(0, Math.floor((offset * scale - EDGE) / step)));
    Object.assign(at, { row: place(event.clientY - box.top), column: place(event.clientX - box.left) });
    tell();
  });
  whenThemed(tell);
  return h("div", {}, h("h3", {}, title), canvas, note);
}
