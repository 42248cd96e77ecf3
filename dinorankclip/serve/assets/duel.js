// The duel: one query, the first k of both models beside each other, and the paired difference over the whole set.
import { announce, api, byId, choices, count, exclusive, h, names, percent, photo, progressIn, remember, signed, svg, typing, whenReady } from "/assets/common.js";
import { forest } from "/assets/forest.js";

const PAGE = 50; // queries fetched at a time
const shown = { q: null, caption: null, image: null, direction: "t2i", outcome: "won" };
const list = { items: [], total: 0, at: -1, turn: 0 };

const ordinal = (n) => `${count(n)}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th"}`;

function change(item, side) {
  const other = side === "a" ? "B" : "A";
  const gain = side === "a" ? item.rank - item.rank_other : item.rank_other - item.rank; // above 0: B places it higher
  const arrow = gain === 0 ? "=" : `${gain > 0 ? "▲" : "▼"}${count(Math.abs(gain))}`;
  const words = gain === 0 ? "the same rank" : `B places it ${Math.abs(gain)} ${gain > 0 ? "higher" : "lower"}`;
  return [`${other}: ${ordinal(item.rank_other)} `,
    h("span", { class: `change ${gain > 0 ? "up" : gain < 0 ? "down" : ""}`, title: words }, arrow)];
}

function hit(item, side, itemsAre) {
  const isImage = itemsAre === "images";
  const words = (isImage ? item.caption : item.text) ?? `image ${item.index}`;
  const look = item.right === null || item.right === undefined ? "" : item.right ? "is-right" : "is-wrong";
  const badge = look && h("span", { class: "badge" }, item.right ? "✓ right " : "✗ ");
  const link = h("a", { class: `hit ${look}`, href: isImage ? `/inside/${item.index}` : `/?caption=${item.index}`, "data-index": item.index },
    h("span", { class: "rank" }, h("span", { class: "sr" }, "rank "), String(item.rank)),
    h("span", { class: "words" },
      h("span", { class: "caption" }, words),
      h("span", { class: "sub" }, badge, `${item.score.toFixed(3)} · `, change(item, side))),
    isImage && photo(item.index, ""));
  return h("li", {}, link);
}

function rightWords(answer) {
  const right = answer.right_rank;
  if (!right) return null;
  const noun = answer.items_are === "images" ? "right image" : "first right caption";
  const verdict = right.a === right.b ? "both alike" : right.b < right.a ? "B finds it earlier" : "A finds it earlier";
  return h("span", { class: "fact" }, `The ${noun}: A `, h("b", {}, ordinal(right.a)), ", B ", h("b", {}, ordinal(right.b)), ` (${verdict})`);
}

function head(answer) {
  const { query } = answer;
  const words = query.kind === "image" ? `Captions for image ${shown.image}` : `“${query.text}”`;
  return h("div", { class: "query-now" },
    query.kind === "image" && h("a", { href: `/inside/${shown.image}` }, photo(shown.image, `image ${shown.image}, the query`, 240)),
    h("blockquote", {}, words));
}

function joined(answer, columns) {
  const drawing = svg("svg", { class: "lines", "aria-hidden": "true" });
  const right = new Set(answer.query.right);
  const draw = () => {
    const frame = drawing.getBoundingClientRect();
    const middle = (node) => { const box = node.getBoundingClientRect(); return box.top + box.height / 2 - frame.top; };
    drawing.replaceChildren(...answer.common.map(({ index, rank_a, rank_b }) => {
      const [left, other] = columns.map((column) => middle(column.querySelector(`[data-index="${index}"]`)));
      const w = frame.width;
      const look = `${rank_b < rank_a ? "up" : rank_b > rank_a ? "down" : ""} ${right.has(index) ? "right" : ""}`;
      return svg("path", { class: look, "data-index": index, d: `M0 ${left} C ${w / 2} ${left}, ${w / 2} ${other}, ${w} ${other}` });
    }));
  };
  new ResizeObserver(draw).observe(drawing);
  return drawing;
}

function light(box, event, on) {
  const index = event.target.closest?.("[data-index]")?.dataset.index;
  if (index === undefined) return;
  for (const node of box.querySelectorAll(`[data-index="${index}"]`)) node.classList.toggle("lit", on);
}

function draw(answer) {
  const k = answer.a.length;
  const noun = answer.items_are;
  const column = (side) => h("ol", { class: `col-${side}`, "aria-label": `First ${k} ${noun} of model ${side.toUpperCase()}` },
    answer[side].map((item) => hit(item, side, noun)));
  const heading = (side) => h("h2", { class: `col-${side}` }, h("span", { class: `letter letter-${side}` }, side.toUpperCase()), h("span", { title: names[side] }, names[side]));
  const [a, b] = [column("a"), column("b")];
  const box = h("div", { class: `duel ${noun === "captions" ? "captions-only" : ""}` }, heading("a"), heading("b"), a, joined(answer, [a, b]), b);
  for (const [kind, on] of [["mouseover", true], ["mouseout", false], ["focusin", true], ["focusout", false]]) box.addEventListener(kind, (event) => light(box, event, on));
  const facts = h("div", { class: "facts" },
    h("span", { class: "fact" }, h("b", {}, `${answer.common.length} of ${k}`), ` ${noun} in common (overlap ${percent(answer.overlap, 0)} %)`),
    rightWords(answer));
  const legend = h("p", { class: "small dim" }, `Each row has the cosine of its ${noun.slice(0, -1)} with the query, then its rank by the other model. `,
    h("span", { class: "change up" }, "▲"), " B ranks it that many places higher than A, ", h("span", { class: "change down" }, "▼"), " lower.");
  byId("result").replaceChildren(head(answer), facts, legend, box);
  announce(`${answer.common.length} of ${k} ${noun} in common.`);
}

async function compare(values) {
  Object.assign(shown, { q: null, caption: null, image: null }, values);
  const kind = shown.q !== null ? "q" : shown.caption !== null ? "caption" : "image";
  const k = byId("k").value;
  remember({ [kind]: shown[kind], k: k === "10" ? null : k, direction: shown.direction === "t2i" ? null : shown.direction, outcome: shown.outcome === "won" ? null : shown.outcome });
  await exclusive("duel", byId("result"), async (signal) => draw(await api(`/api/duel?${kind}=${encodeURIComponent(shown[kind])}&k=${k}`, { signal })));
}

function drawSummary(reply) {
  const box = byId("summary");
  const total = reply.won + reply.lost + reply.tied;
  const part = (name, n) => {
    const span = h("span", { class: name });
    span.style.width = `${(100 * n) / Math.max(1, total)}%`;
    return span;
  };
  const noun = shown.direction === "t2i" ? "image" : "caption";
  const direction = h("div", { class: "choices", role: "group", "aria-label": "Direction" });
  box.replaceChildren(h("h2", {}, `All ${count(reply.n)} queries`), direction,
    h("p", { class: "verdict" }, reply.words),
    forest(reply.scores),
    h("p", { class: "small dim" }, `R@k: percent of queries whose right ${noun} is among the first k, by A and by B. The bar is B minus A in points with its 95 % interval, paired query by query; it has a colour if chance does not explain it.`),
    h("div", { class: "share", role: "img", "aria-label": `B ranks the right ${noun} higher in ${reply.won} queries, lower in ${reply.lost}, the same in ${reply.tied}` },
      part("won", reply.won), part("tied", reply.tied), part("lost", reply.lost)),
    h("p", { class: "small" }, `B ranks the right ${noun} higher in ${count(reply.won)} queries, lower in ${count(reply.lost)}, the same in ${count(reply.tied)}. `,
      `Its median rank: A ${count(reply.median_rank.a)}, B ${count(reply.median_rank.b)}.`));
  choices(direction, [["t2i", "Words → images"], ["i2t", "Image → captions"]], shown.direction, (value) => { shown.direction = value; openSet(() => true); });
  choices(byId("outcomes"), [["won", `B won ${count(reply.won)}`], ["lost", `B lost ${count(reply.lost)}`], ["all", "All"]], shown.outcome, (value) => { shown.outcome = value; openQueries(() => true); });
}

async function fetchQueries(offset) {
  const { turn } = list;
  const reply = await api(`/api/duel/queries?outcome=${shown.outcome}&direction=${shown.direction}&offset=${offset}&limit=${PAGE}`);
  if (turn !== list.turn) return;
  list.total = reply.total;
  const start = list.items.length;
  list.items.push(...reply.items);
  byId("queries").append(...reply.items.map((item, n) => {
    const at = start + n;
    return h("li", { role: "option", id: `query-${at}`, "aria-selected": "false", onclick: () => step(at) },
      h("span", { class: "text" }, item.text), h("span", { class: "ranks" }, `${count(item.rank_a)} → ${count(item.rank_b)}`));
  }));
}

const nothingAsked = () => shown.q === null && shown.caption === null && shown.image === null;

/** Fetch the list of queries; show its first unless `show` is false by then: a query of the reader's own goes first. */
async function openQueries(show) {
  Object.assign(list, { items: [], total: 0, at: -1, turn: list.turn + 1 });
  byId("queries").replaceChildren();
  await exclusive("queries", byId("queries"), () => fetchQueries(0));
  if (list.total === 0) byId("queries").replaceChildren(h("li", { role: "option", "aria-disabled": "true" }, "No query of this kind."));
  place();
  if (show() && list.total) await step(0);
}

function place() {
  byId("place").textContent = list.total === 0 ? "" : list.at < 0 ? `${count(list.total)} queries` : `${count(list.at + 1)} of ${count(list.total)}`;
  byId("previous").disabled = list.at <= 0;
  byId("next").disabled = list.at + 1 >= list.total;
}

async function step(at) {
  if (at < 0 || at >= list.total) return;
  if (at >= list.items.length) await fetchQueries(list.items.length);
  if (!list.items[at]) return;
  const box = byId("queries");
  box.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
  const option = byId(`query-${at}`);
  option.setAttribute("aria-selected", "true");
  box.setAttribute("aria-activedescendant", option.id);
  box.scrollTop = option.offsetTop - box.offsetTop - box.clientHeight / 2 + option.clientHeight / 2;
  list.at = at;
  place();
  await compare(shown.direction === "t2i" ? { caption: list.items[at].query } : { image: list.items[at].query });
}

async function openSet(show) {
  try {
    byId("summary").hidden = false;
    drawSummary(await api(`/api/duel/summary?direction=${shown.direction}`, { waiting: progressIn(byId("summary")) }));
  } catch (error) {
    byId("summary").replaceChildren(h("p", { class: "note" }, error.message));
  }
  byId("stepping").hidden = false;
  await openQueries(show);
}

function keys(event) {
  if (typing(event) || list.total === 0) return;
  const inList = event.target === byId("queries");
  const move = { ArrowRight: 1, ArrowLeft: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
  if (move === undefined) return;
  event.preventDefault();
  step(Math.max(0, list.at + move));
}

async function start() {
  const set = await whenReady();
  const asked = new URLSearchParams(location.search);
  if (asked.get("k")) byId("k").value = asked.get("k");
  shown.direction = asked.get("direction") === "i2t" ? "i2t" : "t2i";
  shown.outcome = ["lost", "all"].includes(asked.get("outcome")) ? asked.get("outcome") : "won";
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); compare({ q: byId("q").value.trim() }); });
  byId("k").addEventListener("change", () => { if (!nothingAsked()) compare({ ...shown }); });
  byId("previous").addEventListener("click", () => step(list.at - 1));
  byId("next").addEventListener("click", () => step(list.at + 1));
  document.addEventListener("keydown", keys);
  const fixed = ["q", "caption", "image"].find((name) => asked.has(name));
  if (fixed === "q") byId("q").value = asked.get("q");
  if (set.known_pairs) {
    byId("any").hidden = false;
    byId("any").addEventListener("click", () => compare({ caption: Math.floor(Math.random() * set.captions) }));
  } else {
    byId("summary").hidden = false;
    byId("summary").replaceChildren(h("p", { class: "note" }, "The set has no captions, so which image is right is unknown: compare by words of your own."));
    byId("result").replaceChildren(h("p", { class: "empty" }, "Type some words and compare."));
  }
  if (fixed) compare({ [fixed]: asked.get(fixed) });
  if (set.known_pairs) await openSet(nothingAsked);
}

start();
