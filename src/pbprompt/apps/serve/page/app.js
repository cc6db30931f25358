"use strict";

const SHOWN = 8; // classes before "show all"
const NO_SPREAD = 0.005; // below it the line's ends, two pixels each, would be wider than the line
const HOVER_MS = 120; // a pointer that only passes asks for nothing

let image = null; // the file that is shown
let answer = null; // what the server said of it
let note = null; // why it could not say whether it is unsure
let asked = 0; // counts images, so that a late answer to an earlier one is dropped
let heats = new Map(); // class name -> promise of what speaks for it: a heat map, and parts of photographs
let wanted = null; // class whose heat map should be shown
let hovering = 0;
let multiLabel = false; // whether an image may have several of the classes: then there are no heat maps
let shared = false; // whether the server keeps added classes, for everybody
let added = []; // class names that were added: by this visit, or by anybody where they are shared

async function take(file) {
  if (!file) return;
  image = file;
  answer = null;
  showHeat(null);
  URL.revokeObjectURL(byId("preview").src);
  byId("preview").src = URL.createObjectURL(file);
  byId("preview").alt = `Your image ${file.name}`;
  byId("shown").hidden = true; // until it has loaded: a file that is no image is not shown as a broken one
  byId("samples").hidden = true;
  byId("result").hidden = true;
  await predict();
}

async function trySample(name, src) {
  const bytes = Uint8Array.from(atob(src.split(",")[1]), (c) => c.charCodeAt(0));
  await take(new File([bytes], name));
  byId("file").focus(); // the button that was focused is gone
}

async function showSamples() {
  const { samples, drawn } = await call("samples");
  byId("to-try").replaceChildren(
    ...Object.entries(samples).map(([name, src]) => {
      const onclick = () => trySample(name, src).catch(complain);
      const picture = element("img", { src, alt: name });
      return element("li", {}, element("button", { type: "button", title: name, onclick }, picture));
    }),
  );
  byId("whence").textContent = drawn
    ? "(Drawings: Fluent Emoji by Microsoft, MIT.)"
    : "(These are of the model’s own data, kept back when it was fitted.)";
  byId("samples").hidden = image !== null;
}

async function predict() {
  const turn = ++asked;
  heats = new Map();
  complain(null);
  byId("status").textContent = "Looking…";
  byId("unsure").hidden = byId("unjudged").hidden = byId("unknown").hidden = byId("nothing").hidden = true;
  try {
    const said = await call("predict", { method: "POST", body: imageAs("files") });
    if (turn !== asked) return;
    answer = said.predictions[0];
    note = said.note;
    showAnswer(SHOWN);
  } catch (error) {
    if (turn !== asked) return;
    byId("status").textContent = "No answer.";
    byId("result").hidden = true;
    complain(error);
    return error;
  }
}

// with the classes that were added for this visit
function imageAs(field) {
  const form = new FormData();
  if (!shared) added.forEach((name) => form.append("classes", name));
  form.append(field, image, image.name || "image");
  return form;
}

function showAnswer(count) {
  const { labels, scores, spreads, prediction_set: among } = answer;
  byId("nothing").hidden = !answer.nothing;
  if (labels) sayLabels();
  else sayClass();
  const names = Object.keys(scores).sort((one, other) => scores[other] - scores[one]);
  const rows = names
    .slice(0, count)
    .map((name) => row(name, scores[name], spreads ? spreads[name] : null, labels || among || []));
  byId("scores").replaceChildren(...rows);
  byId("more").hidden = names.length <= count;
  byId("more").textContent = `Show all ${names.length} ${labels ? "labels" : "classes"}`;
  byId("result").hidden = false;
}

function sayClass() {
  const { label, score, entropy, epistemic, unsure, unknown, prediction_set: among, answer: wider } = answer;
  byId("status").textContent = `${label}, ${percent(score)}`;
  if (wider && wider !== label) byId("status").textContent = `${wider}, ${percent(answer.answer_score)}, perhaps ${label}`;
  byId("unsure").hidden = !unsure || wider;
  byId("unjudged").hidden = unsure !== null;
  byId("unknown").hidden = !unknown;
  byId("set").textContent = among
    ? `Over all images, as over those about as hard as this one, such a list holds the true class nine times ` +
      `in ten: ${shortened(among)} (●).` +
      (note ? ` But ${note}.` : "")
    : `Whether this is unsure, and which classes it may be, is not known: ${note}.` +
      (added.length ? " Remove the added classes to see both again." : "");
  byId("doubt").textContent = doubt(entropy, epistemic);
}

// of a multi-label model: each label by itself, given from its threshold on
function sayLabels() {
  byId("status").textContent = answer.labels.join(", ") || "None of the labels";
  byId("set").textContent = "Given (●) are the labels whose probability is at or above their threshold.";
  byId("doubt").textContent = "";
}

// exp(entropy) classes, all as likely as each other, would leave as much doubt
function doubt(entropy, epistemic) {
  const classes = Math.exp(entropy).toFixed(1);
  if (classes === "1.0") return "The model is in next to no doubt.";
  const share = Math.round((100 * epistemic) / entropy);
  return (
    `The model is as undecided as between ${classes} equally likely classes. ` +
    (share ? `${share} % of that is disagreement among its sampled classifiers: more labelled images may settle it. ` : "") +
    "The line across a bar is one standard deviation among the sampled classifiers."
  );
}

const shortened = (names) =>
  names.length > 6 ? `${names.slice(0, 6).join(", ")} and ${names.length - 6} more` : names.join(", ");

function row(name, score, spread, among) {
  const line = element("span", { className: "spread" });
  const fill = element("span", { className: "fill" });
  fill.style.setProperty("--p", score);
  line.style.setProperty("--low", Math.max(0, score - spread));
  line.style.setProperty("--high", Math.min(1, score + spread));
  const spoken = spread === null ? percent(score) : `${percent(score)} ± ${(100 * spread).toFixed(1)}`;
  const button = element(
    "button",
    { type: "button" },
    element("span", { className: "name" }, name),
    element("span", { className: "value" }, spoken),
    element("span", { className: "bar", ariaHidden: "true" }, fill, ...(spread < NO_SPREAD ? [] : [line])),
  );
  button.addEventListener("focus", () => showHeat(name));
  button.addEventListener("blur", () => showHeat(null));
  button.addEventListener("click", () => showHeat(name)); // not every browser focuses what is clicked
  button.addEventListener("pointerenter", () => {
    clearTimeout(hovering);
    hovering = setTimeout(() => showHeat(name), HOVER_MS);
  });
  button.addEventListener("pointerleave", () => {
    clearTimeout(hovering);
    if (document.activeElement !== button) showHeat(null);
  });
  return element("li", { className: among.includes(name) ? "in-set" : "" }, button);
}

async function showHeat(name) {
  wanted = name;
  const heat = byId("heat");
  byId("parts").hidden = true;
  if (name === null || multiLabel) {
    heat.hidden = true;
    byId("caption").textContent = multiLabel ? "" : "Point at a class, or tap it, to see what speaks for it.";
    return;
  }
  if (!heats.has(name)) heats.set(name, askHeat(name));
  try {
    const { mean, parts } = await heats.get(name);
    if (wanted !== name) return;
    showParts(parts);
    heat.src = `data:image/png;base64,${mean}`;
    heat.alt = `Heat map of ${name}`;
    heat.hidden = false;
    byId("caption").textContent = `What speaks for “${name}”: bright is much, grey is nothing.`;
  } catch (error) {
    heats.delete(name);
    if (wanted === name) byId("caption").textContent = `No heat map: ${error.message}`;
  }
}

async function askHeat(name) {
  const form = imageAs("file");
  form.append("class", name);
  return call("explain", { method: "POST", body: form });
}

function showParts(parts) {
  byId("parts").hidden = parts.length === 0;
  byId("parts").replaceChildren(
    ...parts.map(({ logit, photograph, picture }) => {
      const said = `${logit.toFixed(2)} of the logit: this part looks like that part of ${photograph}`;
      return element("li", {}, element("img", { src: `data:image/png;base64,${picture}`, alt: said }), said);
    }),
  );
}

async function showModel() {
  const health = await call("healthz");
  shared = health.shared_classes;
  multiLabel = health.multi_label;
  byId("class-form").hidden = multiLabel;
  byId("to-label").hidden = !health.labelling;
  const count = health.classes + (shared ? 0 : added.length);
  byId("model").textContent = `${health.method} on ${health.backbone}, ${count} ${multiLabel ? "labels" : "classes"}`;
  if (health.needs_key && !key) return askForKey();
  if (shared) added = (await call("classes")).added;
  showAdded();
  if (!byId("to-try").children.length) await showSamples();
}

function showAdded() {
  byId("added").hidden = added.length === 0;
  byId("whose").textContent = shared
    ? "Added, for everybody who uses this server:"
    : "Added for this visit; nobody else sees them, and reloading the page forgets them:";
  byId("names").replaceChildren(
    ...added.map((name) => {
      const onclick = () => remove(name).catch(complain);
      return element("li", {}, element("button", { type: "button", ariaLabel: `Remove ${name}`, onclick }, `${name} ×`));
    }),
  );
}

async function remove(name) {
  complain(null);
  if (shared) await call(`classes?name=${encodeURIComponent(name)}`, { method: "DELETE" });
  else added = added.filter((other) => other !== name);
  byId("status").textContent = `Removed ${name}.`;
  byId("name").focus(); // the button that was focused is gone
  await showModel();
  if (image) await predict();
}

async function add(name) {
  complain(null);
  if (shared) await call("classes", asJson({ names: [name] }));
  else if (!added.includes(name)) added.push(name);
  byId("name").value = "";
  byId("status").textContent = `Added ${name}.`;
  await showModel();
  const error = image && (await predict());
  if (error && !shared) {
    added = added.filter((other) => other !== name); // what the server does not take is not added
    await showModel();
    await predict();
    throw error;
  }
}

byId("preview").addEventListener("load", ({ target }) => {
  target.parentElement.style.setProperty("--ratio", target.naturalWidth / target.naturalHeight);
  byId("shown").hidden = false;
});
byId("file").addEventListener("change", (event) => take(event.target.files[0]));
byId("more").addEventListener("click", () => {
  showAnswer(Infinity);
  byId("scores").children[SHOWN].firstChild.focus(); // the button that was focused is gone
});
byId("drop").addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("drop").classList.add("over");
});
byId("drop").addEventListener("dragleave", () => byId("drop").classList.remove("over"));
byId("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  take(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => take(event.clipboardData.files[0]));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") showHeat(null);
});
onKey(() => {
  byId("file").focus();
  showModel().catch(complain);
  if (image) predict();
});
onSubmit("class-form", () => add(byId("name").value.trim()).catch(complain));
showModel().catch(complain);
