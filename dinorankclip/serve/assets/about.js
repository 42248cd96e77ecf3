// What is open, and the documents of the API, drawn from its own description.
import { api, byId, count, errorBox, h, letter, models, notes, theSet } from "/assets/common.js";

const PARTS = { students: "students", fusion: "fusion", gates: "gates", dense: "dense tokens", heads: "transition heads", teacher_cache: "cached teacher" };

function modelBox(model) {
  const has = Object.entries(PARTS).filter(([name]) => model.has[name]).map(([, words]) => words);
  return h("div", { class: "call" }, h("h3", {}, letter(model.id), ` ${model.name}`),
    h("p", {}, [model.method, model.recipe && `recipe ${model.recipe}`, `order ${model.order}`, `trunk ${model.trunk}`, `${model.image_size} px`, `${count(model.rows)} rows`].filter(Boolean).join(" · ")),
    h("p", { class: "small" }, has.length ? `It has ${has.join(", ")}.` : "It has a trunk alone."), notes(model.lacks));
}

async function opened() {
  const [known, set] = await Promise.all([models(), theSet()]);
  byId("opened").replaceChildren(
    h("p", {}, `${set.name}, split ${set.split || "none"}: ${count(set.images)} images, ${count(set.captions)} captions, ${count(set.damaged)} damaged. `,
      set.known_pairs ? "Captions tell which image is right." : "Which image is right is not known."), ...known.map(modelBox));
}

const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  return schema.type === "array" ? `list of ${typeOf(schema.items)}` : schema.type ?? "anything";
};

function parameters(list) {
  if (!list?.length) return null;
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Parameter", "Where", "Type", "Default", ""].map((words) => h("th", { class: "text" }, words)))),
    h("tbody", {}, list.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.name)), h("td", { class: "text" }, one.in), h("td", { class: "text" }, typeOf(one.schema)),
      h("td", { class: "text" }, one.required ? "needed" : JSON.stringify(one.schema?.default ?? null)), h("td", { class: "text" }, one.description ?? ""))))));
}

function body(call, document_) {
  const content = call.requestBody?.content;
  if (!content) return null;
  return Object.entries(content).map(([kind, { schema }]) => {
    const full = schema?.$ref ? document_.components.schemas[schema.$ref.split("/").pop()] : schema;
    const fields = Object.entries(full?.properties ?? {}).map(([name, value]) => `${name}: ${typeOf(value)}`);
    return h("p", { class: "small" }, "Body ", h("code", {}, kind), fields.length ? [" with ", h("code", {}, `{${fields.join(", ")}}`)] : "");
  });
}

/** Text with the names between backticks as code. */
const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

async function calls() {
  const described = await api("/api/openapi.json");
  byId("calls").replaceChildren(...Object.entries(described.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, call]) =>
    h("div", { class: "call" }, h("h3", {}, h("span", { class: "verb" }, verb.toUpperCase()), ` ${path}`),
      h("p", { class: "small" }, withCode(call.description ?? call.summary ?? "")), parameters(call.parameters), body(call, described)))));
}

opened().catch((error) => byId("opened").replaceChildren(errorBox(error)));
calls().catch((error) => byId("calls").replaceChildren(errorBox(error)));
