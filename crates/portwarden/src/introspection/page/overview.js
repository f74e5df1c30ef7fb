// The status at a glance: verdict, figures, plots, last syncs, source.

import { bytes, count, get, h, mark, number, seconds, serviceLink, setText, time } from "./dom.js";
import { plots } from "./plots.js";
import { entryRow } from "./timeline.js";

const SYNCS = 8;
const ENTRIES = 6;

export function overview() {
  const banner = h("section", { class: "banner", "aria-label": "Health" });
  const cards = h("section", { class: "cards", "aria-label": "Figures" });
  const charts = plots();
  const syncs = h("tbody");
  const sources = h("ul", { class: "plain" });
  const events = h("ol", { class: "entries" });
  const refused = h("section", { class: "panel", hidden: true });
  let version = null;

  async function showEvents(status) {
    if (version === status.timelineVersion) return;
    version = status.timelineVersion;
    const { entries } = await get("/api/timeline").catch(() => ({ entries: [] }));
    events.replaceChildren(...entries.slice(0, ENTRIES).map(entryRow));
  }

  return {
    title: "Overview",
    element: h("div", { class: "stack" },
      h("h1", { class: "hidden" }, "Overview"), banner, cards, charts.element, refused,
      h("div", { class: "columns" },
        h("section", { class: "panel" }, h("h2", null, "Last syncs"),
          h("div", { class: "scroll" }, h("table", { class: "tight" },
            h("caption", { class: "hidden" }, "The last syncs, newest first"),
            h("thead", null, h("tr", null, ["When", "Family", "Kind", "Took", "Change to kernel", "Written"].map((text) => h("th", { scope: "col" }, text)))),
            syncs))),
        h("div", { class: "stack" },
          h("section", { class: "panel" }, h("h2", null, "What happened"), events,
            h("p", null, h("a", { href: "#/timeline" }, "The whole time line"))),
          h("section", { class: "panel" }, h("h2", null, "Source of objects"), sources)))),
    status(status) {
      showBanner(banner, status);
      showCards(cards, status);
      syncs.replaceChildren(...status.syncs.slice(0, SYNCS).map(syncRow));
      if (!status.syncs.length) syncs.replaceChildren(h("tr", null, h("td", { colspan: 6, class: "quiet" }, "Nothing was written yet.")));
      sources.replaceChildren(...status.sources.map((part) => h("li", null,
        mark(part.following ? "good" : "bad", part.following ? "followed" : "failing"), " ", part.part,
        h("span", { class: "quiet" }, part.error ? `: ${part.error}` : " since "), part.error ? null : time(part.since))));
      if (!status.sources.length) sources.replaceChildren(h("li", { class: "quiet" }, "Nothing was read yet."));
      showRefused(refused, status.refused);
      showEvents(status);
    },
    series: (series) => charts.update(series),
    leave: () => charts.leave(),
  };
}

function showBanner(banner, status) {
  const { verdict } = status;
  const tone = verdict.healthy ? "good" : "bad";
  const services = Math.max(0, ...status.families.map((family) => family.services));
  const headline = verdict.healthy
    ? services ? "Every known change is in the kernel" : "Running; there is no Service yet"
    : "Portwarden needs attention";
  const text = `${headline}|${verdict.reasons.join("|")}`;
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  banner.className = `banner ${tone}`;
  banner.replaceChildren(h("strong", null, headline),
    verdict.reasons.length ? h("ul", null, verdict.reasons.map((reason) => h("li", null, reason))) : "");
}

function showCards(cards, status) {
  const families = status.families;
  const pending = status.oldestPending;
  const last = status.syncs[0];
  const table = status.conntrack;
  const share = table ? table.entries / table.limit : 0;
  const list = [
    ["Services", number(Math.max(0, ...families.map((one) => one.services))), families.map((one) => `${one.family} ${number(one.services)}`).join(" · "), "#/services"],
    ["Endpoints", number(families.reduce((sum, one) => sum + one.endpoints, 0)), families.map((one) => `${one.family} ${number(one.endpoints)}`).join(" · ")],
    ["Oldest pending change", pending === null ? "none" : seconds(pending), pending === null ? "the kernel is up to date" : "waits for the kernel", null, pending > 5 ? "bad" : null],
    ["Last sync", last ? seconds(last.duration) : "–", last ? `${number(last.written)} written, ${last.full ? "full" : count(last.services, "Service")}` : "nothing written yet", null, last?.error ? "bad" : null],
    ["Repairs", number(status.totals.repairs), "changes by other processes undone", "#/timeline"],
    ["Refused Services", number(status.refused.count), status.totals.problems ? `${count(status.totals.problems, "unusable field")} in objects` : "all fields of objects are usable", "#/timeline", status.refused.count ? "bad" : null],
    ["Conntrack", table ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : "–", table ? `${number(table.entries)} of ${number(table.limit)}` : "not shown by this kernel", null, share > 0.9 ? "bad" : null, table ? share : null],
    ["Memory", bytes(status.memory), `up for ${seconds(status.uptime)}`],
  ];
  if (cards.childElementCount !== list.length) cards.replaceChildren(...list.map(card));
  list.forEach(([, value, note, , tone, meter], index) => {
    const element = cards.children[index];
    element.classList.toggle("bad", tone === "bad");
    setText(element.querySelector(".value"), value);
    setText(element.querySelector(".note"), note);
    const bar = element.querySelector("meter");
    if (bar && meter !== null && meter !== undefined) bar.value = meter;
  });
}

function card([label, , , link, , meter]) {
  return h(link ? "a" : "div", { class: "card", href: link },
    h("span", { class: "label" }, label), h("span", { class: "value" }), h("span", { class: "note quiet" }),
    meter !== null && meter !== undefined ? h("meter", { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, "aria-label": label }) : null);
}

function syncRow(sync) {
  return h("tr", { class: sync.error ? "failed" : null },
    h("td", null, time(sync.at)), h("td", null, sync.family),
    h("td", null, sync.error ? mark("bad", "failed") : sync.full ? "full" : count(sync.services, "Service"),
      sync.error ? h("div", { class: "quiet" }, sync.error) : null),
    h("td", { class: "figure" }, seconds(sync.duration)),
    h("td", { class: "figure" }, seconds(sync.changeToKernel)),
    h("td", { class: "figure" }, number(sync.written)));
}

function showRefused(panel, refused) {
  panel.hidden = refused.count === 0;
  if (panel.hidden) return;
  panel.replaceChildren(h("h2", null, `${count(refused.count, "Service")} refused by the kernel`),
    h("ul", { class: "plain" }, refused.services.slice(0, 10).map((one) => h("li", null,
      h("a", { href: serviceLink(one.service) }, one.service), ` (${one.family}): `, h("span", { class: "quiet" }, one.reason)))));
}
