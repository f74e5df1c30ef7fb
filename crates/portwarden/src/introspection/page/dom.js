// Building elements and formatting values. Text is only ever set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. Properties that start with "on" are listeners; `class` and others are attributes; null is left out. */
export function h(name, properties, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** The same for SVG. */
export function svg(name, properties, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Replaces the text of an element if it differs, so that screen readers do not repeat it. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Gets JSON, or throws an Error with the server's message. */
export async function get(path, signal) {
  const answer = await fetch(path, { signal, headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(body.error), { suggestions: body.didYouMean ?? [] });
  return body;
}

/**
 * Decides when to load something again: after syncs, at most once per interval. A sync soon after a load is not forgotten, only loaded later.
 * The loader calls `started` first of all.
 */
export function refresher(live, interval, load) {
  const versionOf = (status) => `${status.totals.syncs} ${status.refused.count}`;
  let latest = live.status ? versionOf(live.status) : null;
  let loaded = null;
  let loadedAt = 0;
  let timer = null;
  return {
    started() {
      loaded = latest;
      loadedAt = Date.now();
    },
    status(status) {
      latest = versionOf(status);
      if (latest === loaded || document.hidden) return;
      timer ??= setTimeout(() => { timer = null; load(); }, Math.max(0, loadedAt + interval - Date.now()));
    },
    stop: () => clearTimeout(timer),
  };
}

const whole = new Intl.NumberFormat("en");

export function number(value) {
  return whole.format(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} d`;
}

export function bytes(value) {
  if (value === 0) return "0";
  return value < 1 << 20 ? `${(value / 1024).toFixed(0)} KiB` : `${(value / (1 << 20)).toFixed(1)} MiB`;
}

/** "1 Service", "2 Services". */
export function count(value, word) {
  return `${number(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** A point in time, as the clock of this browser shows it, with the full date for pointers and screen readers. */
export function time(text) {
  const date = new Date(text);
  const today = new Date().toDateString() === date.toDateString();
  const shown = today ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
  return h("time", { datetime: text, title: text }, shown);
}

/** How a Service's state is shown. */
export const STATES = {
  serving: ["good", "serving"],
  noLocalEndpoints: ["warn", "no endpoint on this node"],
  partlyServed: ["warn", "partly served"],
  noEndpoints: ["bad", "no endpoints"],
  refused: ["bad", "refused by the kernel"],
};

/** A coloured mark with words: the colour never stands alone. */
export function mark(tone, words) {
  return h("span", { class: `mark ${tone}` }, words);
}

export function problem(error) {
  return h("div", { class: "notice bad", role: "alert" }, error.message,
    error.suggestions?.length ? [" Did you mean ", error.suggestions.map((name, index) =>
      [index ? ", " : "", h("a", { href: serviceLink(name) }, name)]), "?"] : null);
}

export function serviceLink(name) {
  return `#/service/${name.split("/").map(encodeURIComponent).join("/")}`;
}
