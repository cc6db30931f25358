"use strict";

const WANTED = 3; // labels

const rightly = ({ right, of }) => `${right} of ${of} labelled images, ${percent(right / of)}`;

async function refresh() {
  const { labelled, estimate, estimate_at_start: first } = await call("labelling");
  byId("labelled").textContent = labelled < WANTED ? `${labelled} of ${WANTED} labelled.` : `${labelled} labelled: done.`;
  byId("change").textContent = !labelled || !estimate
    ? "Label an image first."
    : `Right on ${rightly(estimate)}` + (first ? `; before your labels on ${rightly(first)}.` : "; before your labels there were not two of a class, to judge one by the other.");
}

onKey(() => refresh().catch(complain));
addEventListener("pageshow", () => refresh().catch(complain)); // also on the way back
