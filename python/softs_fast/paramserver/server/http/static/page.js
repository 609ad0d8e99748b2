"use strict";
// Polls /v1/status and signs with the owner's key, which stands in the fragment of the URL and is not sent.

const element = (id) => document.getElementById(id);
const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const losses = [];
let key = null;

async function readKey() {
  const text = location.hash.slice(1);
  if (!/^[0-9a-f]{64}$/.test(text)) return null;
  if (!crypto.subtle) {
    element("waiting").textContent = "The browser signs only on pages of https:// or of localhost.";
    return null;
  }
  const raw = Uint8Array.from(text.match(/../g), (pair) => parseInt(pair, 16));
  return crypto.subtle.importKey("raw", raw, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
}

async function send(method, target, body = "", counter = 1 + crypto.getRandomValues(new Uint32Array(1))[0]) {
  const encoder = new TextEncoder();
  const digest = hex(await crypto.subtle.digest("SHA-256", encoder.encode(body)));
  const lines = ["SF1", "owner", method, target, String(counter), "-", digest].join("\n");
  const mac = hex(await crypto.subtle.sign("HMAC", key, encoder.encode(lines)));
  const headers = { Authorization: `SF1 id=owner, n=${counter}, mac=${mac}` };
  if (body) headers["Content-Type"] = "application/json";
  return fetch(target, { method, headers, body: body || undefined, cache: "no-store" });
}

function show(status) {
  element("state").textContent = status.state;
  element("waiting").textContent = status.waiting_for;
  element("progress").value = status.version / status.rounds;
  const numbers = {
    Round: `${status.version} of ${status.rounds}`,
    Timeline: status.timeline,
    Pushes: `${status.have} of ${status.need}`,
    Workers: `${status.members.filter((one) => one.state === "active").length} of ${status.world_size}`,
    Loss: status.loss === null ? "-" : status.loss.toPrecision(4),
    Evaluation: status.metric === null ? "-" : status.metric.toPrecision(4),
  };
  element("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => {
    const box = document.createElement("div");
    const term = box.appendChild(document.createElement("dt"));
    const detail = box.appendChild(document.createElement("dd"));
    term.textContent = name;
    detail.textContent = value;
    return box;
  }));
  element("workers").replaceChildren(...status.members.map((one) => {
    const row = document.createElement("tr");
    const upload = one.upload_bytes ? `${Math.round(100 * one.uploaded_bytes / one.upload_bytes)} %` : "-";
    const loss = one.loss === null ? "-" : one.loss.toPrecision(4);
    for (const text of [one.rank, one.name, one.state, one.counted, one.stale, loss, upload, `${one.silent_s} s ago`]) {
      row.appendChild(document.createElement("td")).textContent = text;
    }
    return row;
  }));
  element("log").textContent = [...status.log].reverse().join("\n");
  if (status.loss !== null && (!losses.length || losses[losses.length - 1][0] !== status.version)) {
    losses.push([status.version, status.loss]);
    if (losses.length > 2000) losses.shift();
    draw();
  }
}

function draw() {
  if (losses.length < 2) return;
  const values = losses.map(([, loss]) => loss);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", values.map((value, i) =>
    `${600 * i / (values.length - 1)},${115 - 110 * (value - low) / (high - low || 1)}`).join(" "));
  element("losses").replaceChildren(line);
}

async function poll() {
  let since = -1;
  for (;;) {
    try {
      const answer = await send("GET", `/v1/status?since=${since}&wait=20`);
      if (answer.status === 200) {
        const status = await answer.json();
        since = status.serial;
        show(status);
      } else if (answer.status === 401) {
        element("waiting").textContent = "The key of this link is not the one of this run.";
        return;
      }
      await new Promise((done) => setTimeout(done, 500));
    } catch (error) {
      element("state").textContent = "out of reach";
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

// The server gives the counter, so no clock decides; another program of the owner may have used it meanwhile.
async function control(action) {
  for (let attempt = 0; attempt < 5; attempt++) {
    const status = await (await send("GET", "/v1/status")).json();
    const body = JSON.stringify({ action, worker_id: "" });
    if ((await send("POST", "/v1/control", body, status.next_control)).status !== 401) return;
  }
}

readKey().then((found) => {
  key = found;
  if (!key) return;
  for (const button of document.querySelectorAll("button[data-action]")) {
    button.addEventListener("click", () => {
      const action = button.dataset.action;
      if (action !== "stop" || confirm("End the run?")) control(action);
    });
  }
  poll();
});
