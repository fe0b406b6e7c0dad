// Calls to the service. Errors come out in the words of the service.

const KEY = "triwire-key";

export class ServiceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key === null ? more : { ...more, Authorization: `Bearer ${key}` };
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service cannot be reached.", 0);
  }
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-needed"));
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* a proxy answered in words of its own */ }
  throw new ServiceError(message, response.status);
}

/** The answer to a GET. */
export async function get(path) {
  return (await send(path, { headers: headers() })).json();
}

/** A file behind a GET, as an address that an image can show. */
export async function fileAddress(path) {
  return URL.createObjectURL(await (await send(path, { headers: headers() })).blob());
}

/** The answer to a POST, and how long the device computed in milliseconds. */
export async function post(path, body, { signal, contentType = "application/json", accept } = {}) {
  const response = await send(path, {
    method: "POST",
    headers: headers({ "Content-Type": contentType, ...(accept && { Accept: accept }) }),
    body: contentType === "application/json" ? JSON.stringify(body) : body,
    signal,
  });
  const timing = response.headers.get("Server-Timing") ?? "";
  const compute = Number(/compute;dur=([\d.]+)/.exec(timing)?.[1] ?? NaN);
  return { answer: await response.json(), compute };
}

/** Calls `onEvent` with every server-sent event of the answer to a POST. */
export async function stream(path, body, onEvent, signal) {
  const response = await send(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ServiceError("The answer ended too early.", 0);
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const content = JSON.parse(data);
      if (content.error) throw new ServiceError(content.error.message, 0);
      onEvent(content);
    }
  }
}
