// a decision for every listed image, and the table that `pbprompt fit --corrections` takes
const boxes = [...document.querySelectorAll("[data-image]")];
const listed = new Map(); // an image may be found in several ways
for (const box of boxes) listed.set(box.dataset.image, [...(listed.get(box.dataset.image) ?? []), box]);
const chosen = new Map();
const merged = new Map(); // a class, and what all its images are relabelled
const cell = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const option = (select, value, text) => select.add(new Option(text, value));

function decide(image, value) {
  chosen.set(image, value);
  for (const box of listed.get(image)) {
    const select = box.querySelector("select");
    if (![...select.options].some((one) => one.value === value)) fill(select, box.dataset);
    select.value = value;
  }
}

// a thousand classes in a thousand lists would be slow to open: all are listed where somebody is about to choose
function fill(select, { was, suggested }) {
  if (select.dataset.full) return;
  select.dataset.full = "yes";
  for (const name of classes)
    if (was && name !== was && suggested !== `relabel ${name}`) option(select, `relabel ${name}`, `relabel: ${name}`);
}

function rows() {
  const last = (name, seen = new Set()) =>
    merged.has(name) && !seen.has(name) ? last(merged.get(name), seen.add(name)) : name;
  const found = new Map();
  for (const name of merged.keys())
    for (const image of members[name]) found.set(image, [image, "relabel", last(name), name, `${name} is ${last(name)}`]);
  for (const [image, value] of chosen) {
    const [decision, ...label] = value.split(" ");
    const { was, why } = listed.get(image)[0].dataset;
    if (decision && !(decision === "keep" && found.has(image)))
      found.set(image, [image, decision, last(label.join(" ")), was, why]);
  }
  return [...found.values()];
}

function tell() {
  document.getElementById("decided").textContent = `${rows().length} decided`;
}

for (const box of boxes) {
  const { image, was, suggested } = box.dataset;
  const select = document.createElement("select");
  select.setAttribute("aria-label", `Decision for ${image}`);
  option(select, "", "undecided");
  if (suggested) option(select, suggested, `${suggested.replace(" ", ": ")} (suggested)`);
  if (was) option(select, "keep", "keep");
  if (suggested !== "drop") option(select, "drop", "drop");
  for (const about of ["pointerenter", "focus"]) select.addEventListener(about, () => fill(select, box.dataset));
  select.addEventListener("change", () => {
    decide(image, select.value);
    tell();
  });
  box.append(select);
}

for (const kind of document.querySelectorAll(".finds")) {
  const line = document.createElement("p");
  const own = [...kind.querySelectorAll("[data-image]")];
  const all = (words, value) => {
    const button = document.createElement("button");
    button.textContent = words;
    button.addEventListener("click", () => {
      for (const { dataset } of own) if (!chosen.get(dataset.image) && value(dataset)) decide(dataset.image, value(dataset));
      tell();
    });
    line.append(button, " ");
  };
  const count = own.filter((box) => box.dataset.suggested).length;
  if (count) all(`Accept all ${count} suggestions`, ({ suggested }) => suggested);
  if (own.some((box) => box.dataset.was)) all("Keep all that are undecided", () => "keep");
  all("Drop all that are undecided", () => "drop");
  kind.before(line);
}

for (const pair of document.querySelectorAll("[data-first]")) {
  const { first, second } = pair.dataset;
  const select = document.createElement("select");
  select.setAttribute("aria-label", `Decision for ${first} and ${second}`);
  option(select, "", "undecided: two classes");
  for (const [from, to] of [[first, second], [second, first]])
    option(select, JSON.stringify([from, to]), `relabel all ${members[from].length} of ${from}: ${to}`);
  select.addEventListener("change", () => {
    for (const name of [first, second])
      if ([first, second].includes(merged.get(name))) merged.delete(name);
    if (select.value) merged.set(...JSON.parse(select.value));
    tell();
  });
  pair.append(select);
}

document.getElementById("download").addEventListener("click", () => {
  const lines = [["image", "decision", "label", "was", "why"], ...rows()].map((row) => row.map(cell).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([[...lines, ""].join("\n")]));
  link.download = "corrections.csv";
  link.click();
});
