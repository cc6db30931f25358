// a decision for every listed image, and the table that `pbprompt fit --corrections` takes
const boxes = [...document.querySelectorAll("[data-image]")];
const chosen = new Map();
const cell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
function option(select, value, text) {
  select.add(new Option(text, value));
}
for (const box of boxes) {
  const select = document.createElement("select");
  select.setAttribute("aria-label", `Decision for ${box.dataset.image}`);
  option(select, "", "undecided");
  option(select, "keep", "keep");
  option(select, "drop", "drop");
  for (const name of classes) if (name !== box.dataset.was) option(select, `relabel ${name}`, `relabel: ${name}`);
  select.addEventListener("change", () => {
    chosen.set(box.dataset.image, { ...box.dataset, value: select.value });
    for (const other of boxes)
      if (other.dataset.image === box.dataset.image) other.querySelector("select").value = select.value;
    const decided = [...chosen.values()].filter((one) => one.value).length;
    document.getElementById("decided").textContent = `${decided} decided`;
  });
  box.append(select);
}
document.getElementById("download").addEventListener("click", () => {
  const lines = [...chosen.values()].filter((one) => one.value).map((one) => {
    const [decision, ...label] = one.value.split(" ");
    return [one.image, decision, label.join(" "), one.was, one.why].map(cell).join(",");
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([["image,decision,label,was,why", ...lines, ""].join("\n")]));
  link.download = "corrections.csv";
  link.click();
});
for (const image of document.querySelectorAll(".pictures img"))
  image.addEventListener("click", () => image.classList.toggle("large"));
