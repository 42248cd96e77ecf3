// Helpers of all canvases: sharp on dense screens, colours of the sheet, colour maps.

/** The value of a colour of the style sheet as it is now, light or dark. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Set the pixels of a canvas for a drawing of `wide` × `high` units and return its context. */
export function context(canvas, wide, high) {
  const dense = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(wide * dense);
  canvas.height = Math.round(high * dense);
  const drawing = canvas.getContext("2d");
  drawing.setTransform(dense, 0, 0, dense, 0, 0);
  drawing.clearRect(0, 0, wide, high);
  return drawing;
}

const STOPS = [[52, 20, 84], [56, 74, 135], [36, 122, 140], [48, 168, 115], [150, 205, 66], [250, 230, 90]];

/** A colour from dark (0) to bright (1); even steps of brightness, legible without telling red from green. */
export function heat(share) {
  const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[low].map((value, n) => Math.round(value + (at - low) * (STOPS[low + 1][n] - value)));
}

/** A colour of a signed number: blue below 0, white or black at 0, rust above; `share` from −1 to 1. */
export function signedHeat(share, dark) {
  const ends = dark ? [[125, 182, 238], [32, 32, 34], [240, 160, 112]] : [[35, 99, 159], [255, 255, 255], [168, 74, 24]];
  const size = Math.min(1, Math.abs(share));
  const end = share < 0 ? ends[0] : ends[2];
  return ends[1].map((value, n) => Math.round(value + size * (end[n] - value)));
}

export const rgb = (values, alpha = 1) => `rgb(${values.join(" ")} / ${alpha})`;
export const isDark = () => colour("card") !== "#fff";

/** Call `draw` now and whenever light turns to dark or back. */
export function whenThemed(draw) { draw(); document.addEventListener("theme", draw); }

/** Round marks for an axis between two numbers, about `count` of them. */
export function ticks(low, high, wanted = 4) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high + step * 1e-9; mark += step) marks.push(Number(mark.toPrecision(12)));
  return marks;
}

/** A number with a minus sign in place of the hyphen. */
export const minus = (text) => text.replace("-", "−");

export const short = (value, digits = 3) => {
  const size = Math.abs(value);
  if (size >= 1e4) return minus(`${Number((value / 1000).toPrecision(digits))}k`);
  return size !== 0 && size < 1e-3 ? value.toExponential(0) : minus(String(Number(value.toPrecision(digits))));
};
