"use strict";

const KEYS = 9; // classes that have a key of their own

let now = null; // what the server wants labelled
let busy = false; // a label is on its way: a second click must not label the next image
let pictures = new Map(); // image name -> promise of its address

async function refresh() {
  await show(await call("labelling"));
}

async function show(state) {
  now = state;
  const { image, after, suggested, scores, labelled, left } = now;
  byId("progress").textContent = `${labelled} labelled, ${left} to go. Labels are in ${now.table}.`;
  byId("done").hidden = image !== null;
  byId("undo").disabled = !now.may_undo;
  byId("skip").disabled = byId("name").disabled = image === null;
  showEstimate();
  byId("classes").replaceChildren(...ordered(scores).map((name, place) => choice(name, place, scores[name])));
  byId("caption").textContent = image
    ? `${image}. The model would say ${suggested}, ${percent(scores[suggested])}.`
    : "";
  byId("shown").hidden = true;
  for (const [name, address] of pictures) {
    if (name !== image && name !== after) {
      pictures.delete(name);
      address.then((url) => URL.revokeObjectURL(url), () => {});
    }
  }
  if (image === null) return;
  try {
    byId("picture").src = await picture(image);
    byId("picture").alt = `The image ${image}`;
    byId("shown").hidden = false;
  } catch (error) {
    complain(error);
  }
  if (after) picture(after).catch(() => {}); // so that it is there when its turn comes
}

function picture(name) {
  if (!pictures.has(name)) pictures.set(name, load(name));
  return pictures.get(name);
}

async function load(name) {
  // fetched rather than linked to: an <img> could not send the key
  const response = await ask(`labelling/image?name=${encodeURIComponent(name)}`);
  if (!response.ok) {
    pictures.delete(name);
    throw new Error((await response.json()).error);
  }
  return URL.createObjectURL(await response.blob());
}

// Few classes keep their places, so that a key means one class; of many, the likeliest come first.
function ordered(scores) {
  const names = Object.keys(scores);
  if (names.length <= KEYS) return names;
  const likely = [...names].sort((one, other) => scores[other] - scores[one]).slice(0, KEYS);
  return [...likely, ...names.filter((name) => !likely.includes(name)).sort()];
}

function choice(name, place, score) {
  const button = element(
    "button",
    { type: "button", onclick: () => label(name) },
    element("kbd", { ariaHidden: "true" }, place < KEYS ? place + 1 : ""),
    element("span", { className: "name" }, name),
    element("span", { className: "value quiet" }, percent(score)),
  );
  return element("li", { className: name === now.suggested ? "suggested" : "" }, button);
}

function showEstimate() {
  const { estimate, estimate_at_start: first } = now;
  if (!estimate) {
    byId("estimate").textContent = "Not known yet.";
    byId("estimate-note").textContent = "It takes two labelled images of a class to judge one by the other.";
    return;
  }
  const share = estimate.right / estimate.of;
  byId("estimate").textContent = `Right on ${estimate.right} of ${estimate.of} labelled images, ${percent(share)}`;
  byId("estimate-note").textContent =
    "Each image was judged by the model without it" +
    (first ? `; before your labels it was ${percent(first.right / first.of)}. ` : ". ") +
    "You are shown the hardest images, so this may fall while the model gets better on the others.";
}

async function send(path, body) {
  if (busy) return;
  busy = true;
  complain(null);
  byId("classes").ariaBusy = "true";
  try {
    await show(await call(path, asJson(body)));
    return true;
  } catch (error) {
    complain(error);
  } finally {
    busy = false;
    byId("classes").ariaBusy = "false";
  }
}

async function label(name) {
  if (!now || now.image === null) return false;
  return send("labelling", { image: now.image, label: name });
}

byId("skip").addEventListener("click", () => send("labelling", { image: now.image }));
byId("undo").addEventListener("click", () => send("labelling/undo", {}));
onSubmit("class-form", async () => {
  if (await label(byId("name").value.trim())) {
    byId("name").value = "";
    byId("name").blur(); // so that keys label again
  }
});
document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const place = "123456789".indexOf(event.key);
  if (place >= 0) byId("classes").children[place]?.firstChild.click();
  if (event.key.toLowerCase() === "s" && !byId("skip").disabled) byId("skip").click();
  if (event.key.toLowerCase() === "u" && !byId("undo").disabled) byId("undo").click();
});
onKey(() => refresh().catch(complain));
refresh().catch(complain);
