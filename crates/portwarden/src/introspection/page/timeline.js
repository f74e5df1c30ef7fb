// What happened: repairs, reloads, failures.

import { get, h, mark, problem, time } from "./dom.js";

const TONES = { info: "good", warning: "warn", error: "bad" };

const WORDS = {
  started: "start", installed: "installed", tampered: "changed by others", repaired: "repaired", syncFailed: "sync failed",
  syncRecovered: "sync recovered", serviceRefused: "Service refused", serviceAccepted: "Service accepted", objectProblem: "unusable field",
  configurationApplied: "configuration", configurationRejected: "configuration rejected", modeChanged: "mode",
  sourceFailing: "source failing", sourceFollowing: "source followed", engineStuck: "engine stuck", engineRecovered: "engine recovered",
};

export function timeline() {
  const list = h("ol", { class: "entries" });
  const trouble = h("input", { type: "checkbox", id: "trouble", onchange: () => show() });
  let version = null;
  let entries = [];

  function show() {
    const shown = entries.filter((entry) => !trouble.checked || entry.level !== "info");
    list.replaceChildren(...shown.map(entryRow));
    if (!shown.length) list.replaceChildren(h("li", { class: "empty" }, "Nothing to show."));
  }

  async function load() {
    try {
      ({ entries } = await get("/api/timeline"));
      show();
    } catch (error) {
      list.replaceChildren(h("li", null, problem(error)));
    }
  }

  return {
    title: "Time line",
    element: h("section", { class: "stack" }, h("h1", null, "Time line"),
      h("div", { class: "bar" }, h("label", { class: "check" }, trouble, h("span", null, "Only warnings and errors"))),
      h("div", { class: "panel" }, list)),
    status(status) {
      if (version === status.timelineVersion) return;
      version = status.timelineVersion;
      load();
    },
  };
}

/** One entry, also for the overview. */
export function entryRow(entry) {
  return h("li", null,
    h("span", { class: "when quiet" }, time(entry.last)),
    mark(TONES[entry.level], WORDS[entry.kind] ?? entry.kind),
    h("span", { class: "text" }, entry.text,
      entry.family ? h("span", { class: "tag" }, entry.family) : null,
      entry.count > 1 ? h("span", { class: "tag" }, `${entry.count} times since `, time(entry.at)) : null));
}
