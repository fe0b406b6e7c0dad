// The curl command for what is on the screen.

import { hasKey } from "./api.js";
import { byId } from "./dom.js";

const quoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

export function showCommand(path, body) {
  const lines = [`curl -s ${new URL(path, document.baseURI)}`];
  if (hasKey()) lines.push('-H "Authorization: Bearer $TRIWIRE_KEY"');
  if (body?.stream) lines[0] = lines[0].replace("curl -s", "curl -sN");
  if (body) {
    lines.push("-H 'Content-Type: application/json'");
    lines.push(`-d ${quoted(JSON.stringify(body))}`);
  }
  byId("command-text").textContent = lines.join(" \\\n  ");
  byId("command").hidden = false;
}

export function hideCommand() {
  byId("command").hidden = true;
}

export function setUpCommand() {
  const told = byId("command-copied");
  byId("command-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(byId("command-text").textContent);
      told.textContent = "Copied.";
    } catch {
      // Browsers keep the clipboard from pages that do not come over HTTPS.
      getSelection().selectAllChildren(byId("command-text"));
      told.textContent = "Selected; press Ctrl+C.";
    }
    setTimeout(() => { told.textContent = ""; }, 3000);
  });
}
