// The list of Services. The server searches and pages; the browser never has more than one page.

import { STATES, count, get, h, mark, number, problem, refresher, serviceLink } from "./dom.js";

const REFRESH = 3000;
const TYPING = 150;

export function services(live, _, query) {
  const state = { text: query.get("query") ?? "", troubled: query.get("state") === "troubled", page: Number(query.get("page") ?? 0) };
  const input = h("input", {
    type: "search", id: "query", placeholder: "Name, or address of a frontend or endpoint", autocomplete: "off", spellcheck: "false", value: state.text,
    oninput: () => { state.text = input.value; state.page = 0; later(); },
  });
  const troubled = h("input", { type: "checkbox", id: "troubled", onchange: () => { state.troubled = troubled.checked; state.page = 0; load(); } });
  troubled.checked = state.troubled;
  const troubledLabel = h("span", null, "Only with problems");
  const summary = h("p", { class: "quiet", role: "status" });
  const body = h("tbody");
  const failure = h("div");
  const previous = h("button", { type: "button", onclick: () => turn(-1) }, "← Previous");
  const next = h("button", { type: "button", onclick: () => turn(1) }, "Next →");
  const where = h("span", { class: "quiet" });
  let pages = 1;
  let typing = null;
  let running = null;
  const refresh = refresher(live, REFRESH, () => load());

  function later() {
    clearTimeout(typing);
    typing = setTimeout(load, TYPING);
  }

  function turn(by) {
    const page = Math.min(Math.max(state.page + by, 0), pages - 1);
    if (page !== state.page) {
      state.page = page;
      load();
    }
  }

  async function load() {
    running?.abort();
    running = new AbortController();
    refresh.started();
    const parameters = new URLSearchParams({ query: state.text, page: state.page });
    if (state.troubled) parameters.set("state", "troubled");
    history.replaceState(null, "", `#/services?${parameters}`);
    try {
      const page = await get(`/api/services?${parameters}`, running.signal);
      failure.replaceChildren();
      show(page);
    } catch (error) {
      if (error.name !== "AbortError") failure.replaceChildren(problem(error));
    }
  }

  function show(page) {
    ({ pages } = page);
    state.page = page.page;
    summary.textContent = page.matching === page.total ? count(page.total, "Service") : `${number(page.matching)} of ${count(page.total, "Service")}`;
    troubledLabel.textContent = `Only with problems (${number(page.troubled)})`;
    const focused = document.activeElement?.closest?.("tr")?.dataset.service;
    body.replaceChildren(...page.services.map(row));
    if (focused) body.querySelector(`tr[data-service="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
    if (!page.services.length) {
      body.replaceChildren(h("tr", null, h("td", { colspan: 6, class: "empty" },
        page.total ? "No Service matches." : "There is no Service yet. It appears here as soon as the source has one.")));
    }
    where.textContent = `Page ${number(page.page + 1)} of ${number(pages)}`;
    previous.disabled = page.page === 0;
    next.disabled = page.page + 1 >= pages;
  }

  load();
  if (query.has("search")) requestAnimationFrame(() => input.focus());
  return {
    title: "Services",
    keepsFocus: query.has("search"),
    element: h("section", { class: "stack" },
      h("h1", null, "Services"),
      h("form", { class: "bar", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "hidden", for: "query" }, "Search Services"), input,
        h("label", { class: "check" }, troubled, troubledLabel), summary),
      failure,
      h("div", { class: "panel scroll" }, h("table", { id: "services" },
        h("caption", { class: "hidden" }, "Services"),
        h("thead", null, h("tr", null, ["State", "Service", "Cluster IPs", "Ports", "Also at", "Endpoints used"].map((text) => h("th", { scope: "col" }, text)))),
        body)),
      h("div", { class: "bar pager" }, previous, where, next)),
    status: refresh.status,
    search: () => { input.focus(); input.select(); },
    key(event) {
      if (event.key === "ArrowLeft") turn(-1);
      if (event.key === "ArrowRight") turn(1);
    },
    leave: () => { running?.abort(); clearTimeout(typing); refresh.stop(); },
  };
}

function row(service) {
  const [tone, words] = STATES[service.state];
  const [namespace, name] = service.service.split("/");
  const full = service.usedEndpoints === service.endpoints;
  return h("tr", { "data-service": service.service },
    h("td", null, mark(tone, words)),
    h("td", null, h("a", { href: serviceLink(service.service) }, h("span", { class: "quiet" }, `${namespace}/`), name)),
    h("td", { class: "mono" }, service.clusterIps.map((ip) => h("div", null, ip))),
    h("td", null, service.ports.map((port) => h("span", { class: "tag" }, port))),
    h("td", { class: "quiet" }, service.exposures.join(", ")),
    h("td", { class: "figure" }, full ? number(service.endpoints) : `${number(service.usedEndpoints)} of ${number(service.endpoints)}`));
}
