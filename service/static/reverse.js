// Reverse: watch a target being written, then see where cross-attention looked.

import { stream } from "./api.js";
import { heatMap, hideTip } from "./charts.js";
import { showCommand } from "./command.js";
import { byId, latest, make, percent, shown } from "./dom.js";
import { writeLink } from "./link.js";

const EXAMPLE = "The Time Machine";
let decoders = [];
let isSetUp = false;

export function reverse(models, values) {
  decoders = models.filter((one) => one.task.name === "decode");
  const select = byId("reverse-model");
  select.replaceChildren(...decoders.map((one) => make("option", { value: one.id, textContent: one.id })));
  if (!decoders.length) {
    byId("reverse-error").textContent = "No model that decodes is loaded.";
    byId("reverse-error").hidden = false;
    return;
  }
  select.value = decoders.some((one) => one.id === values.model) ? values.model : (decoders.find((one) => one.task.alignment) ?? decoders[0]).id;
  byId("reverse-text").value = values.text ?? fitting(chosen());
  if (!isSetUp) setUp();
  showLimits();
  decode();
}

const chosen = () => decoders.find((one) => one.id === byId("reverse-model").value);

/** An example that a model can read. */
function fitting(model) {
  const { min_len: low, max_len: high } = model.limits;
  if (EXAMPLE.length >= low && EXAMPLE.length <= high && [...EXAMPLE].every((symbol) => model.alphabet.includes(symbol))) return EXAMPLE;
  const letters = [...model.alphabet].filter((symbol) => /[a-z]/.test(symbol));
  return letters.slice(0, Math.max(low, Math.min(high, 12))).join("");
}

function setUp() {
  isSetUp = true;
  byId("reverse-form").addEventListener("submit", (event) => {
    event.preventDefault();
    decode();
  });
  byId("reverse-model").addEventListener("change", () => {
    byId("reverse-text").value = fitting(chosen());
    showLimits();
    decode();
  });
}

function showLimits() {
  const { limits, alphabet } = chosen();
  const lengths = limits.min_len === limits.max_len ? `exactly ${limits.min_len}` : `${limits.min_len} to ${limits.max_len}`;
  byId("reverse-limits").textContent = `Reads ${lengths} of these: ${shown(alphabet)}`;
}

const decode = latest(byId("reverse-error"), async (signal) => {
  const model = chosen(), text = byId("reverse-text").value;
  const body = { model: model.id, inputs: text, attention: true };
  writeLink("reverse", { model: model.id, text });
  showCommand("v1/decode", body);
  const output = byId("reverse-output");
  output.textContent = "";
  byId("reverse-agreement").textContent = "";
  byId("reverse-maps").replaceChildren();
  hideTip();
  const gap = model.target_separator ?? "";
  let whole;
  await stream("v1/decode", body, (event) => {
    if (event.token === undefined) whole = event;
    else output.textContent += (output.textContent && gap) + event.token;
  }, signal);
  const [result] = whole.results;
  output.textContent = result.output;
  showAgreement(result.alignment);
  showMaps(result, Boolean(model.task.alignment));
});

function showAgreement(alignment) {
  if (alignment.hit_rate === undefined) return;
  byId("reverse-agreement").textContent = `The head-averaged map is strongest at the true source position for ${percent(alignment.hit_rate)} ` +
    `of the symbols, with a mean weight of ${alignment.mean_weight.toFixed(3)} there.`;
}

function showMaps(result, isKnown) {
  const { weights, source_tokens: source, target_tokens: target, layers } = result.attention;
  const last = weights.length - 1, heads = weights[last];
  const mean = target.map((_, t) => source.map((_, s) => heads.reduce((sum, head) => sum + head[t][s], 0) / heads.length));
  const map = (title, rows) => heatMap({
    title, rows, range: [0, 1], rowNames: target, columnNames: source,
    label: (t, s) => `${shown(target[t])} (${t + 1}) looks at ${shown(source[s])} (${s + 1}): ${rows[t][s].toFixed(3)}`,
    outlined: isKnown ? (t) => source.length - 1 - t : undefined,
  });
  byId("reverse-maps").replaceChildren(
    map("Mean of the heads", mean),
    ...heads.map((rows, i) => map(`Head ${i + 1}${layers.length > 1 ? `, layer ${last + 1}` : ""}`, rows)));
}
