// The views, which of them is on the screen, and what they share: models, key, status.

import { get, setKey } from "./api.js";
import { hideCommand, setUpCommand } from "./command.js";
import { byId } from "./dom.js";
import { fill } from "./fill.js";
import { readLink } from "./link.js";
import { models } from "./models.js";
import { read } from "./read.js";
import { reverse } from "./reverse.js";

const VIEWS = { fill, reverse, read, models };
const RETRY_MS = 1500;
let loaded;

function show() {
  const { view, values } = readLink();
  const name = view in VIEWS ? view : "fill";
  hideCommand();
  for (const one of Object.keys(VIEWS)) byId(`view-${one}`).hidden = one !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `Triwire: ${name}`;
  if (loaded) VIEWS[name](loaded, values);
}

async function load() {
  const status = byId("status");
  try {
    loaded = (await get("v1/models")).data;
    status.hidden = true;
    show();
  } catch (error) {
    status.textContent = error.message;
    status.hidden = false;
    if (error.status === 503 || error.status === 0) setTimeout(load, RETRY_MS);
  }
}

document.addEventListener("key-needed", () => { byId("key-form").hidden = false; });
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key-form").hidden = true;
  load();
});
// <base> would send links to places in this page to the address of the service.
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    if (link.className === "skip") byId("main").focus();
    else location.hash = link.hash;
  });
}
addEventListener("hashchange", show);
setUpCommand();
show();
load();
