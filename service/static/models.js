// Models: what is loaded, how it was trained, what was measured of it.

import { fileAddress } from "./api.js";
import { showCommand } from "./command.js";
import { byId, make } from "./dom.js";
import { writeLink } from "./link.js";

const LONGEST_LIST = 8;

export function models(loaded) {
  writeLink("models", {});
  showCommand("v1/models");
  byId("models-list").replaceChildren(...loaded.map(card));
}

function card(model) {
  const { limits, recipe = {} } = model;
  return make("article", { className: "card" },
    make("h3", { textContent: `${model.id}, version ${model.version}` }),
    make("p", { textContent: `Wiring ${model.wiring}, task ${model.task.name}; ${limits.min_len} to ${limits.max_len} symbols of:` }),
    make("p", {}, make("code", { textContent: model.alphabet.replaceAll(" ", "␣") })),
    recipe.command ? make("pre", { tabIndex: 0, "aria-label": "training command" }, make("code", { textContent: recipe.command })) : "",
    pictures(model),
    part("Figures", model.figures, true),
    part("Recipe", recipe),
    part("Data", model.corpus ?? {}),
    part("Configuration", model.config));
}

function pictures(model) {
  const box = make("div", { className: "plots" });
  for (const name of model.plots ?? []) {
    const image = make("img", { alt: name.replace(/\.png$/, "").replaceAll("_", " "), loading: "lazy" });
    fileAddress(`v1/models/${encodeURIComponent(model.id)}/plots/${encodeURIComponent(name)}`)
      .then((address) => { image.src = address; }, () => image.remove());
    box.append(image);
  }
  return box;
}

function part(title, tree, isOpen = false) {
  const rows = flat(tree).map(([name, value]) => make("tr", {},
    make("th", { scope: "row", textContent: name }), make("td", { textContent: value })));
  return make("details", { open: isOpen && rows.length <= 40 }, make("summary", { textContent: title }),
    make("div", { className: "scroll" }, make("table", {}, make("tbody", {}, ...rows))));
}

/** Nested figures as rows; what is too long for one is counted. */
function flat(tree, prefix = "") {
  return Object.entries(tree).flatMap(([name, value]) => {
    const path = `${prefix}${name}`.replaceAll("_", " ");
    if (Array.isArray(value)) {
      if (value.length > LONGEST_LIST) return [[path, `${value.length} values`]];
      if (value.some((one) => typeof one === "object")) return value.flatMap((one, i) => flat(one, `${path} ${i + 1} `));
      return [[path, value.map(written).join(", ")]];
    }
    if (value !== null && typeof value === "object") return flat(value, `${path} `);
    return [[path, written(value)]];
  });
}

const written = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value));
