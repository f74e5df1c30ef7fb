// Chooses the view, keeps the connection to the server, and shows the verdict.

import { get, setText } from "./dom.js";
import { overview } from "./overview.js";
import { services } from "./services.js";
import { service } from "./service.js";
import { trace } from "./trace.js";
import { timeline } from "./timeline.js";

const main = document.getElementById("main");

/** What all views share. A view is an object with `title`, `element`, and optionally `status`, `series`, `key` and `leave`. */
const live = {
  status: null,
  series: { time: [], sync: [], changeToKernel: [], changes: [], memory: [] },
};

const VIEWS = { overview, services, service, trace, timeline };
const KEYS = ["#/", "#/services", "#/trace", "#/timeline"];
const KEPT = 900;

let view = null;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  const chosen = name || "overview";
  const make = VIEWS[chosen] ?? VIEWS.overview;
  view?.leave?.();
  view = make(live, rest.join("/"), new URLSearchParams(query));
  main.replaceChildren(view.element);
  document.title = `${view.title} · Portwarden`;
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.dataset.view === (chosen === "service" ? "services" : chosen);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (live.status) view.status?.(live.status);
  view.series?.(live.series);
  if (!view.keepsFocus) window.scrollTo(0, 0);
}

function showStatus(status) {
  live.status = status;
  const { verdict } = status;
  const pill = document.getElementById("verdict");
  setText(pill, verdict.healthy ? "healthy" : "needs attention");
  pill.className = `pill ${verdict.healthy ? "good" : "bad"}`;
  setText(document.getElementById("node"), status.node);
  const mode = document.getElementById("mode");
  mode.hidden = false;
  setText(mode, status.nextMode ? `${status.mode} → ${status.nextMode}` : status.mode);
  setText(document.getElementById("version"), `Portwarden ${status.portwarden}, reported as ${status.version}`);
  view?.status?.(status);
}

function addSeries(news) {
  const last = live.series.time.at(-1) ?? 0;
  const first = news.time.findIndex((time) => time > last);
  if (first < 0) return;
  for (const key of Object.keys(live.series)) {
    live.series[key] = live.series[key].concat(news[key].slice(first)).slice(-KEPT);
  }
  view?.series?.(live.series);
}

function follow() {
  const offline = document.getElementById("offline");
  let lost = null;
  const events = new EventSource("/api/events");
  events.addEventListener("open", async () => {
    lost = null;
    offline.hidden = true;
    addSeries(await get("/api/series").catch(() => ({ time: [] })));
  });
  events.addEventListener("status", (event) => showStatus(JSON.parse(event.data)));
  events.addEventListener("series", (event) => addSeries(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    lost ??= Date.now();
    if (events.readyState === EventSource.CLOSED) setTimeout(() => { events.close(); follow(); }, 2000);
  });
  // A stream that ends on purpose is opened again within a second or two: only a longer silence is worth a message.
  const timer = setInterval(() => {
    if (events.readyState === EventSource.CLOSED) clearInterval(timer);
    if (lost && Date.now() - lost > 3000) {
      offline.hidden = false;
      setText(offline, "No connection to Portwarden. What you see is what it last sent; trying again.");
      const pill = document.getElementById("verdict");
      setText(pill, "no connection");
      pill.className = "pill warn";
    }
  }, 1000);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape" && typing) return typing.blur();
  if (typing) return;
  if (event.key === "/") {
    event.preventDefault();
    if (view?.search) view.search();
    else location.hash = "#/services?search";
  } else if (KEYS[Number(event.key) - 1]) {
    location.hash = KEYS[Number(event.key) - 1];
  } else {
    view?.key?.(event);
  }
});

window.addEventListener("hashchange", () => {
  route();
  if (!view.keepsFocus) main.focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

route();
follow();
