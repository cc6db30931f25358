"use strict";

// What both pages need: asking the server, with the key where it wants one, and saying what went wrong.

const byId = (id) => document.getElementById(id);
const element = (tag, properties) => Object.assign(document.createElement(tag), properties);
let key = "";

async function call(path, options = {}) {
  const response = await ask(path, options);
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 429) {
    const seconds = Number(response.headers.get("Retry-After")) || 1;
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    return ask(path, options);
  }
  if (response.status === 401) askForKey();
  return response;
}

function askForKey() {
  byId("key-form").hidden = false;
  byId("key").focus();
}

function onKey(go) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = byId("key").value;
    byId("key-form").hidden = true;
    go();
  });
}

function complain(error) {
  byId("problem").textContent = error ? error.message : "";
  byId("problem").hidden = !error;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
