// A port of a Service: the picture frontends → pools → endpoints, and tables with the reasons.

import { count, h, mark, number, svg } from "./dom.js";

const EXPOSURES = { clusterIp: "cluster IP", externalIp: "external IP", loadBalancerIp: "load balancer", nodePort: "node port" };
const ACTIONS = { forward: "good", reject: "bad", drop: "warn", none: "neutral" };
const ACTION_WORDS = { forward: "forwarded", reject: "rejected", drop: "dropped", none: "not served" };

/** Endpoints in the picture; the table has more. */
const DRAWN = 8;
/** Rows of the table that are shown at first. */
const ROWS = 50;

const WIDTH = 960;
const BOX = { width: 250, height: 46, gap: 12 };
const COLUMNS = [0, 355, WIDTH - BOX.width];

/** Everything about one port in one family. */
export function portSection(family, port) {
  const title = `${port.name ? `Port ${port.name}` : "Port"} · ${port.protocol} · ${family.family}`;
  return h("section", { class: "panel stack port" },
    h("h2", null, title),
    h("div", { class: "tags" },
      port.affinity ? h("span", { class: "tag" }, `session affinity: ${number(port.affinity)} s`) : null,
      port.sourceRanges.length ? h("span", { class: "tag" }, `load balancer only from ${port.sourceRanges.join(", ")}`) : null,
      port.topology ? h("span", { class: "tag" }, port.topology) : null),
    h("div", { class: "scroll" }, picture(port, title)),
    port.frontends.every(isSame) ? null : h("p", { class: "legend quiet" }, "Solid lines: clients elsewhere. Dashed lines: clients on this node, where that differs."),
    frontendTable(port),
    endpointTable(port));
}

function pools(port) {
  const wanted = new Set(port.frontends.flatMap((one) => [one.fromNode.pool, one.fromElsewhere.pool]).filter(Boolean));
  return ["cluster", "local"].filter((name) => wanted.has(name));
}

function picture(port, title) {
  const used = pools(port);
  const others = [...new Set(port.frontends.flatMap((one) => [one.fromNode.action, one.fromElsewhere.action]).filter((action) => action !== "forward"))];
  const middle = [...used.map((name) => ({ id: name, tone: "good", head: name === "local" ? "Endpoints on this node" : "All usable endpoints", text: count(port[`${name}Pool`] ?? 0, "endpoint") })),
    ...others.map((action) => ({ id: action, tone: ACTIONS[action], head: ACTION_WORDS[action], text: { reject: "no usable endpoint", drop: "no endpoint on this node", none: "see the reason below" }[action] }))];
  const drawn = chooseEndpoints(port);
  const rest = port.endpointCount - drawn.length;
  const right = drawn.map((one) => ({
    id: one.address, endpoint: one, tone: isUsed(one) ? "good" : "neutral", head: one.address,
    text: one.onThisNode ? "this node" : one.node ?? "unknown node",
  }));
  if (rest > 0) right.push({ id: "rest", tone: "neutral", head: `${number(rest)} more`, text: "see the table" });
  if (!port.endpointCount) right.push({ id: "empty", tone: "neutral", head: "no endpoints", text: "no slice has one" });
  const left = port.frontends.map((one, index) => ({
    id: index, frontend: one, tone: ACTIONS[one.fromElsewhere.action], head: one.ip ? one.address : `port ${one.port}`,
    text: `${EXPOSURES[one.exposure]}, policy ${one.policy}`,
  }));
  const height = Math.max(left.length, middle.length, right.length) * (BOX.height + BOX.gap) + BOX.gap;
  const columns = [left, middle, right].map((boxes, column) => place(boxes, column, height));
  const lines = [...frontendLines(columns[0], columns[1]), ...endpointLines(columns[1], columns[2])];
  return svg("svg", { class: "picture", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}: ${describe(port)}` },
    lines, columns.flat().map(box));
}

/** Endpoints of this node first, then those in use, then the others. */
function chooseEndpoints(port) {
  const rank = (one) => (isUsed(one) ? 0 : 2) + (one.onThisNode ? 0 : 1);
  return [...port.endpoints].sort((a, b) => rank(a) - rank(b)).slice(0, DRAWN);
}

function isUsed(endpoint) {
  return Boolean(endpoint.cluster?.used || endpoint.local?.used);
}

function place(boxes, column, height) {
  const total = boxes.length * (BOX.height + BOX.gap) - BOX.gap;
  return boxes.map((one, index) => ({ ...one, x: COLUMNS[column], y: (height - total) / 2 + index * (BOX.height + BOX.gap) }));
}

function frontendLines(frontends, targets) {
  return frontends.flatMap((one) => {
    const { fromNode, fromElsewhere } = one.frontend;
    const aim = (verdict) => targets.find((target) => target.id === (verdict.pool ?? verdict.action));
    const same = isSame(one.frontend);
    const lines = [line(one, aim(fromElsewhere), ACTIONS[fromElsewhere.action])];
    if (!same) lines.push(line(one, aim(fromNode), ACTIONS[fromNode.action], true));
    return lines;
  });
}

/** Whether clients on this node and elsewhere are treated alike. */
function isSame({ fromNode, fromElsewhere }) {
  return (fromNode.pool ?? fromNode.action) === (fromElsewhere.pool ?? fromElsewhere.action);
}

function endpointLines(targets, endpoints) {
  return targets.filter((target) => target.id === "cluster" || target.id === "local").flatMap((target) =>
    endpoints.filter((one) => one.endpoint?.[target.id]?.used || (one.id === "rest")).map((one) => line(target, one, one.id === "rest" ? "neutral" : "good", one.id === "rest")));
}

function line(from, to, tone, dashed) {
  if (!to) return null;
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const bend = (x2 - x1) / 2;
  return svg("path", { class: `line ${tone}${dashed ? " dashed" : ""}`, d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
}

function box({ x, y, tone, head, text, endpoint }) {
  const short = (value, most) => (value.length > most ? `${value.slice(0, most - 1)}…` : value);
  return svg("g", { class: `box ${tone}`, transform: `translate(${x} ${y})` },
    svg("title", null, [head, text, endpoint ? reasonOf(endpoint) : ""].filter(Boolean).join("\n")),
    svg("rect", { width: BOX.width, height: BOX.height, rx: 8 }),
    svg("rect", { class: "edge", width: 5, height: BOX.height, rx: 2.5 }),
    svg("text", { class: "head", x: 16, y: 20 }, short(head, 31)),
    svg("text", { class: "text", x: 16, y: 36 }, short(text, 38)));
}

function describe(port) {
  const fronts = port.frontends.map((one) => `${EXPOSURES[one.exposure]} ${one.address}: ${one.fromElsewhere.reason}`);
  return `${fronts.join("; ")}. ${count(port.endpointCount, "endpoint")}.`;
}

function frontendTable(port) {
  const verdict = (one) => [mark(ACTIONS[one.action], ACTION_WORDS[one.action]), h("div", { class: "quiet" }, one.reason.replace(/^(not used: |rejected: |dropped: |forwarded )/, ""))];
  return h("div", { class: "scroll" }, h("table", null, h("caption", null, "Frontends"),
    h("thead", null, h("tr", null, ["Address", "Policy", "From this node", "From elsewhere", "Source address"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, port.frontends.map((one) => h("tr", null,
      h("td", null, h("span", { class: "mono" }, one.address), h("div", { class: "quiet" }, EXPOSURES[one.exposure],
        one.restricted ? `, only from ${port.sourceRanges.join(", ")}` : "")),
      h("td", null, one.policy),
      h("td", null, verdict(one.fromNode)), h("td", null, verdict(one.fromElsewhere)),
      h("td", { class: "quiet" }, one.masquerade))))));
}

function reasonOf(endpoint) {
  const both = endpoint.cluster && endpoint.local && endpoint.cluster.reason !== endpoint.local.reason;
  if (both) return `policy Cluster: ${endpoint.cluster.reason}; policy Local: ${endpoint.local.reason}`;
  return endpoint.cluster?.reason ?? endpoint.local?.reason ?? "no frontend needs it";
}

function endpointTable(port) {
  if (!port.endpointCount) return null;
  const body = h("tbody", null, port.endpoints.slice(0, ROWS).map(endpointRow));
  const rest = port.endpoints.length - ROWS;
  const more = rest > 0 ? h("button", { type: "button", onclick: () => { body.append(...port.endpoints.slice(ROWS).map(endpointRow)); more.remove(); } },
    `Show ${number(rest)} more`) : null;
  const cut = port.endpointCount - port.endpoints.length;
  return h("div", { class: "scroll" }, h("table", null, h("caption", null, `Endpoints (${number(port.endpointCount)})`),
    h("thead", null, h("tr", null, ["Address", "Node", "Conditions", "Used?"].map((text) => h("th", { scope: "col" }, text)))), body),
    more, cut > 0 ? h("p", { class: "quiet" }, `${number(cut)} further endpoints are not listed.`) : null);
}

function endpointRow(endpoint) {
  const conditions = [endpoint.ready && "ready", endpoint.serving && !endpoint.ready && "serving", endpoint.terminating && "terminating"].filter(Boolean);
  return h("tr", null,
    h("td", { class: "mono" }, endpoint.address),
    h("td", null, endpoint.node ?? "–", " ", endpoint.onThisNode ? h("span", { class: "tag" }, "this node") : null),
    h("td", null, conditions.join(", ") || "not ready"),
    h("td", null, mark(isUsed(endpoint) ? "good" : "neutral", isUsed(endpoint) ? "used" : "not used"),
      h("div", { class: "quiet" }, reasonOf(endpoint).replace(/^(not used|used): /, ""))));
}
