// Small helpers around the document.

export const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash, role, scope, for) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** The same for pictures. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function debounce(action, milliseconds) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

/** Runs the newest of many requests; older ones are given up. Errors are shown in `box`. */
export function latest(box, action) {
  let controller;
  return async (...given) => {
    controller?.abort();
    const mine = (controller = new AbortController());
    box.hidden = true;
    try {
      await action(mine.signal, ...given);
    } catch (error) {
      if (error.name === "AbortError" || mine !== controller) return;
      box.textContent = error.message;
      box.hidden = false;
      if (error.status === undefined) throw error;
    }
  };
}

/** A symbol as people can see it. */
export const shown = (symbol) => (symbol === " " ? "␣" : symbol);

export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0995 ? 1 : 0)} %`;

/** Places that can be counted by people, which are code points and not halves of them. */
export const characters = (text) => Array.from(text);
