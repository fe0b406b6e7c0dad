// Fill: hide characters, see what each side says about them.

import { post } from "./api.js";
import { strip } from "./charts.js";
import { showCommand } from "./command.js";
import { byId, characters, debounce, latest, make, percent, shown } from "./dom.js";
import { writeLink } from "./link.js";

const EXAMPLE = "the time traveller for so it will be convenient to speak of him";
const EXAMPLE_HIDDEN = [14, 30];
const TOP_K = 5;
const INPUTS_PER_CALL = 64;
const LONGEST_STRIP = 256;
const SIDES = [["both", "both sides"], ["left", "left side alone"], ["right", "right side alone"]];

let maskToken = "<mask>";
let symbols = [];
let hidden = new Set();
let isSetUp = false;

export function fill(models, values) {
  const model = models.find((one) => one.task.name === "fill-mask");
  if (!model) {
    byId("fill-error").textContent = "No model that fills masks is loaded.";
    byId("fill-error").hidden = false;
    return;
  }
  maskToken = model.mask_token;
  const text = values.text ?? EXAMPLE;
  hidden = new Set(values.text === undefined ? EXAMPLE_HIDDEN : (values.hide ?? "").split(",").filter(Boolean).map(Number));
  byId("fill-text").value = text;
  setText(text);
  if (!isSetUp) setUp();
  ask();
}

function setUp() {
  isSetUp = true;
  byId("fill-text").addEventListener("input", () => {
    const before = symbols, text = byId("fill-text").value;
    const after = characters(text);
    let same = 0;
    while (same < before.length && before[same] === after[same]) same++;
    const moved = after.length - before.length;
    // What is hidden stays hidden where the text before or behind it has changed.
    hidden = new Set([...hidden].map((i) => (i < same ? i : i + moved)).filter((i) => i >= 0 && i < after.length));
    setText(text);
    askSoon();
  });
  const group = byId("fill-characters");
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const index = Number(button.dataset.index);
    if (!hidden.delete(index)) hidden.add(index);
    button.setAttribute("aria-pressed", hidden.has(index));
    ask();
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = Number(event.target.dataset?.index);
    const next = step && group.children[at + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  byId("fill-strip-box").addEventListener("toggle", () => askStrip());
}

function setText(text) {
  symbols = characters(text);
  byId("fill-characters").replaceChildren(...symbols.map((symbol, index) => {
    const button = make("button", {
      type: "button", textContent: shown(symbol), tabIndex: index === 0 ? 0 : -1,
      "aria-pressed": String(hidden.has(index)), "aria-label": `${symbol === " " ? "space" : symbol}, character ${index + 1}`,
    });
    button.dataset.index = index;
    return button;
  }));
}

const masked = (places) => symbols.map((symbol, i) => (places.has(i) ? maskToken : symbol)).join("");

const ask = latest(byId("fill-error"), async (signal) => {
  writeLink("fill", { text: symbols.join(""), hide: [...hidden].sort((a, b) => a - b).join(",") });
  askStrip();
  const body = { inputs: masked(hidden), top_k: TOP_K, evidence: true };
  if (!hidden.size) {
    byId("fill-masks").replaceChildren(make("p", { className: "hint", textContent: "Nothing is hidden yet." }));
    byId("fill-filled").replaceChildren();
    return;
  }
  showCommand("v1/fill-mask", body);
  const { answer } = await post("v1/fill-mask", body, { signal });
  const [result] = answer.results;
  showFilled(result);
  byId("fill-masks").replaceChildren(...result.masks.map((mask) => card(mask, result)));
});
const askSoon = debounce(ask, 250);

function showFilled(result) {
  const filled = characters(result.filled);
  const places = new Set(result.masks.map((mask) => mask.position));
  byId("fill-filled").replaceChildren(...filled.map((symbol, i) => (places.has(i) ? make("mark", { textContent: shown(symbol) }) : symbol)));
}

function card(mask, result) {
  const around = characters(result.filled);
  const before = around.slice(Math.max(0, mask.position - 12), mask.position).join("");
  const behind = around.slice(mask.position + 1, mask.position + 13).join("");
  const rows = mask.candidates.map((candidate, i) => make("tr", {},
    make("th", { scope: "row", className: "symbol", textContent: shown(candidate.token) }),
    make("td", { className: "bars" }, ...SIDES.map(([side, name]) => bar(side, name, mask.evidence[side].scores[i]))),
    make("td", { className: "number", textContent: percent(candidate.score) })));
  const surprise = SIDES.map(([side]) => `${side} ${mask.evidence[side].entropy.toFixed(2)}`).join(", ");
  return make("article", { className: "card" },
    make("h3", {}, `…${before}`, make("strong", { textContent: "▢" }), `${behind}…`),
    make("table", {}, make("caption", { textContent: `Entropy in nats: ${surprise}` }), make("tbody", {}, ...rows)),
    make("ul", { className: "legend" }, ...SIDES.map(([side, name]) => make("li", { className: side, textContent: name }))));
}

function bar(side, name, score) {
  const element = make("span", { className: `bar ${side}`, role: "img", "aria-label": `${name}: ${percent(score)}`, title: `${name}: ${percent(score)}` });
  element.style.width = `${100 * score}%`;
  return element;
}

const askStrip = debounce(latest(byId("fill-error"), async (signal) => {
  if (!byId("fill-strip-box").open) return;
  const figure = byId("fill-strip");
  if (symbols.length > LONGEST_STRIP) {
    figure.textContent = `Shown for texts of up to ${LONGEST_STRIP} characters.`;
    return;
  }
  const found = [];
  for (let first = 0; first < symbols.length; first += INPUTS_PER_CALL) {
    const places = symbols.slice(first, first + INPUTS_PER_CALL).map((_, i) => first + i);
    const inputs = places.map((place) => masked(new Set([place])));
    const { answer } = await post("v1/fill-mask", { inputs, top_k: 1 }, { signal });
    found.push(...answer.results.map((result) => result.masks[0]));
  }
  const wanted = symbols.map((symbol) => (/[A-Za-z]/.test(symbol) ? symbol.toLowerCase() : " "));
  const wrong = found.map((mask, i) => mask.candidates[0].token !== wanted[i]);
  figure.replaceChildren(strip({
    symbols,
    values: found.map((mask) => mask.entropy),
    highest: Math.max(1, ...found.map((mask) => mask.entropy)),
    marked: wrong,
    label: (i) => `${symbols[i]}: ${found[i].entropy.toFixed(2)} nats, expected ${shown(found[i].candidates[0].token)}`,
  }));
}), 400);
