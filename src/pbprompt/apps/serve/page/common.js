"use strict";

// What both pages need: asking the server, with the key where it wants one, and saying what went wrong.

const byId = (id) => document.getElementById(id);
let key = "";

function element(tag, properties, ...inside) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...inside);
  return made;
}

const asJson = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

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

function onSubmit(form, go) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
}

function onKey(go) {
  onSubmit("key-form", () => {
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
