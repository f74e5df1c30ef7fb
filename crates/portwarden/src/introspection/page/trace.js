// What happens to a connection: the same as `portwarden explain --from --to`.

import { get, h, mark, number, problem, serviceLink } from "./dom.js";
import { portSection } from "./picture.js";

const OUTCOMES = { forward: ["good", "forwarded"], reject: ["bad", "rejected"], drop: ["warn", "dropped"], none: ["neutral", "not forwarded"] };

export function trace(live, _, query) {
  const to = h("input", { id: "to", required: true, placeholder: "10.96.0.10:80/udp", value: query.get("to") ?? "", autocomplete: "off", spellcheck: "false", "aria-describedby": "to-help" });
  const from = h("input", { id: "from", placeholder: "10.244.0.7 (optional)", value: query.get("from") ?? "", autocomplete: "off", spellcheck: "false" });
  const result = h("div", { class: "stack", role: "status" });

  async function load() {
    const parameters = new URLSearchParams({ to: to.value.trim() });
    if (from.value.trim()) parameters.set("from", from.value.trim());
    history.replaceState(null, "", `#/trace?${parameters}`);
    try {
      result.replaceChildren(...answer(await get(`/api/explain?${parameters}`)));
    } catch (error) {
      result.replaceChildren(problem(error));
    }
  }

  if (to.value) load();
  else requestAnimationFrame(() => to.focus());
  return {
    title: "Trace",
    keepsFocus: !to.value,
    element: h("section", { class: "stack" }, h("h1", null, "Trace a connection"),
      h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); load(); } },
        h("label", { for: "from" }, "From"), from, h("label", { for: "to" }, "to"), to,
        h("button", { type: "submit", class: "primary" }, "Explain")),
      h("p", { id: "to-help", class: "quiet" }, "Address, port and protocol; TCP if none is given. Nothing is sent: the answer comes from what was decided for this node."),
      result),
    search: () => to.focus(),
  };
}

function answer(found) {
  const [tone, words] = OUTCOMES[found.action];
  const parts = [h("section", { class: "panel outcome" },
    h("h2", null, mark(tone, words), " ", h("span", { class: "mono" }, [found.from ? `${found.from} → ` : "", found.to])),
    h("p", { class: "summary" }, found.summary),
    h("ol", { class: "steps" }, found.steps.map((step) => h("li", null, step))),
    found.endpoints.length ? h("p", null, h("span", { class: "quiet" }, `Endpoints (${number(found.endpointCount)}): `),
      h("span", { class: "mono" }, found.endpoints.slice(0, 12).join(", ")), found.endpointCount > 12 ? " …" : "") : null,
    found.neighbours.length ? [h("p", { class: "quiet" }, "At the same address:"), h("ul", { class: "plain mono" }, found.neighbours.map((one) => h("li", null, one)))] : null,
    found.service ? h("p", null, h("a", { href: serviceLink(found.service) }, `All about ${found.service}`)) : null)];
  const port = found.explanation?.families.flatMap((family) => family.ports.map((one) => [family, one]))
    .find(([, one]) => one.name === found.port && found.to.endsWith(`/${one.protocol}`));
  if (port) parts.push(portSection(port[0], port[1]));
  return parts;
}
