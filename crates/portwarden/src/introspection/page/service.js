// One Service: what each address does and why, with a picture for every port.

import { get, h, mark, problem, refresher } from "./dom.js";
import { portSection } from "./picture.js";

const REFRESH = 2000;

export function service(live, name) {
  const content = h("div", { class: "stack" });
  const refresh = refresher(live, REFRESH, () => load());
  let shown = "";

  async function load() {
    refresh.started();
    try {
      const found = await get(`/api/explain?service=${encodeURIComponent(name)}`);
      const text = JSON.stringify(found);
      if (text === shown) return;
      shown = text;
      content.replaceChildren(...sections(found));
    } catch (error) {
      shown = "";
      content.replaceChildren(problem(error));
    }
  }

  load();
  return {
    title: name,
    element: h("article", { class: "stack" },
      h("p", { class: "crumbs" }, h("a", { href: "#/services" }, "Services"), " / ", name.split("/")[0]),
      h("h1", null, name), content),
    status: refresh.status,
    leave: refresh.stop,
  };
}

function sections(found) {
  return [
    found.refused.map((one) => h("div", { class: "notice bad", role: "alert" },
      mark("bad", "refused by the kernel"), ` ${one.family}: ${one.reason}. All other Services are in force.`)),
    found.families.map((family) => [
      family.ports.map((port) => portSection(family, port)),
      family.notes.length ? h("div", { class: "notice" }, h("ul", { class: "plain" }, family.notes.map((note) => h("li", null, note)))) : null,
    ]),
    h("p", { class: "quiet" }, `Decided for node ${found.node}; ${found.families.map((family) => `${family.family}: ${family.podTraffic}`).join("; ")}.`),
  ].flat(3).filter(Boolean);
}
