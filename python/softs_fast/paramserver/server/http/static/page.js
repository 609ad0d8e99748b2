"use strict";
// Polls /v1/status and signs with the owner's key, which stands in the fragment of the URL and is not sent.

const element = (id) => document.getElementById(id);
const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const losses = [];
// Of the last rounds, when each version was first seen.
const versions = [];
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

function size(bytes) {
  const power = bytes < 1e3 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function duration(seconds) {
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// Seconds of a round: the mean of those that the page has seen, without the time of pauses before them.
function roundSeconds(status) {
  const now = performance.now() / 1000;
  if (status.state !== "open") versions.length = 0;
  else if (!versions.length || versions[versions.length - 1][0] !== status.version) versions.push([status.version, now]);
  if (versions.length > 21) versions.shift();
  if (versions.length < 2) return null;
  const [[first, begin], [last, end]] = [versions[0], versions[versions.length - 1]];
  return (end - begin) / (last - first);
}

function show(status) {
  const round = roundSeconds(status);
  element("state").textContent = status.state;
  element("waiting").textContent = status.waiting_for;
  element("progress").value = status.version / status.rounds;
  const numbers = {
    Round: `${status.version} of ${status.rounds}`,
    "Round time": round === null ? "-" : duration(round),
    "Time left": round === null ? "-" : duration(round * (status.rounds - status.version)),
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
    const upload = one.upload_bytes ? `${size(one.uploaded_bytes)} of ${size(one.upload_bytes)}` : "-";
    const loss = one.loss === null ? "-" : one.loss.toPrecision(4);
    for (const text of [one.rank, one.name, one.state, one.counted, one.stale, loss, upload, `${one.silent_s} s ago`]) {
      row.appendChild(document.createElement("td")).textContent = text;
    }
    const kick = row.appendChild(document.createElement("td")).appendChild(document.createElement("button"));
    kick.textContent = "Kick";
    kick.addEventListener("click", () => {
      if (confirm(`Take ${one.name} out of the run, and refuse it from now on?`)) control("kick", one.worker_id);
    });
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
  element("high").textContent = `loss ${high.toPrecision(3)}`;
  element("low").textContent = `loss ${low.toPrecision(3)}`;
  element("first").textContent = `round ${losses[0][0]}`;
  element("last").textContent = `round ${losses[losses.length - 1][0]}`;
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
async function control(action, worker_id = "") {
  const told = element("told");
  try {
    for (let attempt = 0; attempt < 5; attempt++) {
      const status = await (await send("GET", "/v1/status")).json();
      const answer = await send("POST", "/v1/control", JSON.stringify({ action, worker_id }), status.next_control);
      if (answer.ok) {
        told.textContent = `${action}: done`;
        return;
      }
      if (answer.status !== 401) {
        told.textContent = `${action}: refused, ${(await answer.text()).slice(0, 300)}`;
        return;
      }
    }
    told.textContent = `${action}: not done, another program of the owner was quicker; try again`;
  } catch (error) {
    told.textContent = `${action}: not done, the server is out of reach`;
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
