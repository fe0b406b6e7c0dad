// Read: a long text through a few latents and back, and what reading costs.

import { post } from "./api.js";
import { heatMap, lineChart } from "./charts.js";
import { hideCommand, showCommand } from "./command.js";
import { byId, characters, latest, make, percent, shown } from "./dom.js";
import { writeLink } from "./link.js";

const EXAMPLE = "I saw the moon spinning swiftly through her quarters from new to full, and had the faintest glimpse of the circling stars.";
const LENGTHS = [128, 512, 2048, 8192];
const REPEATS = 3;
// Longer texts than this would make an address that few programs take.
const LONGEST_LINK = 1500;
let model;
let isSetUp = false;

export function read(models, values) {
  model = models.find((one) => one.task.name === "latents");
  if (!model) {
    byId("read-error").textContent = "No model that reads into latents is loaded.";
    byId("read-error").hidden = false;
    return;
  }
  byId("read-text").value = values.text ?? EXAMPLE;
  if (!isSetUp) setUp();
  showCost([]);
  readText();
}

function setUp() {
  isSetUp = true;
  byId("read-form").addEventListener("submit", (event) => {
    event.preventDefault();
    readText();
  });
  byId("read-file").addEventListener("change", (event) => event.target.files[0] && readFile(event.target.files[0]));
  const view = byId("view-read");
  view.addEventListener("dragover", (event) => event.preventDefault());
  view.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) readFile(event.dataTransfer.files[0]);
  });
  byId("read-measure").addEventListener("click", () => measure());
}

const readText = latest(byId("read-error"), async (signal) => {
  const text = byId("read-text").value;
  const body = { model: model.id, inputs: text, reconstruct: true, attention: { heads: "mean" } };
  writeLink("read", { text: text.length <= LONGEST_LINK ? text : "" });
  showCommand("v1/latents", body);
  const { answer } = await post("v1/latents", body, { signal });
  showResult(answer.results[0]);
});

const readFile = latest(byId("read-error"), async (signal, file) => {
  if (!file.name.endsWith(".npy")) {
    byId("read-text").value = await file.text();
    return readText();
  }
  hideCommand();
  const path = `v1/latents?model=${encodeURIComponent(model.id)}`;
  const { answer } = await post(path, await file.arrayBuffer(), { signal, contentType: "application/x-npy" });
  showResult(answer.results[0]);
});

function showResult(result) {
  const [count, width] = result.shape;
  byId("read-summary").textContent = `${result.length} vectors became ${count} latents of ${width} numbers.` +
    (result.fidelity === undefined ? "" : ` Read back from them alone, ${percent(result.fidelity)} of the characters are right.`);
  const flat = result.latents.flat();
  const spread = Math.max(...flat.map(Math.abs));
  byId("read-result").replaceChildren(
    ...(result.fidelity === undefined ? [] : [readBack(result)]),
    ...(result.attention ? [reading(result)] : []),
    heatMap({
      title: "The latents, one a row", rows: result.latents, range: [-spread, spread], cell: 4,
      label: (m, d) => `latent ${m + 1}, number ${d + 1}: ${result.latents[m][d].toFixed(3)}`,
    }));
}

function readBack({ normalized, reconstruction }) {
  const wanted = characters(normalized), found = characters(reconstruction);
  const parts = wanted.map((symbol, i) => (symbol === found[i] ? symbol
    : make("mark", { textContent: shown(found[i]), title: `was ${shown(symbol)}` })));
  return make("div", {}, make("h3", { textContent: "The text read back" }),
    make("p", { className: "hint", textContent: "Marked where another character came back." }),
    make("p", { className: "kept", tabIndex: 0 }, ...parts));
}

function reading({ attention }) {
  const rows = attention.weights[0][0], source = attention.source_tokens;
  const highest = Math.max(...rows.flat());
  return heatMap({
    title: "What each latent read: latents down, characters across", rows, range: [0, highest],
    cell: Math.max(1, Math.min(8, Math.floor(900 / source.length))),
    label: (m, s) => `latent ${m + 1} reads ${shown(source[s])} (${s + 1}): ${rows[m][s].toFixed(3)}`,
  });
}

const measure = latest(byId("read-error"), async (signal) => {
  const button = byId("read-measure");
  button.disabled = true;
  try {
    const here = [];
    const text = EXAMPLE.repeat(Math.ceil(Math.max(...LENGTHS) / EXAMPLE.length));
    for (const length of LENGTHS.filter((one) => one <= model.limits.max_len)) {
      button.textContent = `Measuring ${length} characters…`;
      const times = [];
      // Letters only, so that as many characters are read as are sent.
      const inputs = text.replace(/[^A-Za-z]+/g, " ").slice(0, length);
      for (let i = 0; i < REPEATS; i++) {
        times.push((await post("v1/latents", { model: model.id, inputs, encoding_format: "base64" }, { signal })).compute);
      }
      here.push([length, times.sort((a, b) => a - b)[Math.floor(REPEATS / 2)]]);
      showCost(here);
    }
  } finally {
    button.disabled = false;
    button.textContent = "Measure this service";
  }
});

function showCost(here) {
  const cost = model.figures.cost;
  const series = cost ? [
    { name: `self-attention, when it was trained: N^${cost.self_attention_exponent.toFixed(2)}`, kind: "other", points: cost.lengths.map((n, i) => [n, cost.self_attention_ms[i]]) },
    { name: `this Perceiver, when it was trained: N^${cost.perceiver_exponent.toFixed(2)}`, kind: "", points: cost.lengths.map((n, i) => [n, cost.perceiver_ms[i]]) },
  ] : [];
  if (here.length) series.push({ name: "this service, now", kind: "here", points: here });
  if (series.length) byId("read-cost").replaceChildren(...lineChart({ title: "Time to read N vectors", xName: "N", yName: "ms", series }));
}
