// What is on the screen, in the address: #view?name=value. Every state has a link that reopens it.

export function readLink() {
  const [view, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  return { view, values: Object.fromEntries(new URLSearchParams(query)) };
}

/** Writes the state without a new entry in the history, which typing would fill. */
export function writeLink(view, values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "");
  const query = new URLSearchParams(kept).toString();
  const hash = `#${view}${query && `?${query}`}`;
  // Relative to the document, which is not where <base> points.
  history.replaceState(null, "", location.pathname + location.search + hash);
}
