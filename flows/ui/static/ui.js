// Only comfort: every page can be read without it. It looks for a newer turn, and turns the list of vintages into a slider.
"use strict";

(function watch() {
  const link = document.getElementById("fresh");
  const said = document.getElementById("said");
  const shown = document.body.dataset.run;
  if (!link) return; // a page that says what went wrong
  async function look() {
    try {
      const answer = await fetch("/api/state", { headers: { accept: "application/json" } });
      const state = answer.ok ? await answer.json() : null;
      if (state && state.run && state.run !== shown && link.hidden) {
        link.href = window.location.href;
        link.hidden = false;
        said.textContent = "A newer turn is there.";
      }
    } catch (error) {
      // The server has ended; the page stays readable.
    }
  }
  window.setInterval(look, 20000);
})();

(function slider() {
  const range = document.querySelector("[data-slider]");
  const form = document.querySelector(".vintage-form");
  if (!range || !form) return;
  range.closest(".slider").hidden = false;
  const times = Array.from(form.elements.issued.options, (option) => option.value).reverse();
  let newest = 0;

  function address(time) {
    const query = new URLSearchParams({ key: form.elements.key.value, model: form.elements.model.value, issued: time });
    return "/market?" + query.toString();
  }

  async function show(time) {
    const asked = ++newest;
    const target = address(time);
    const answer = await fetch(target);
    if (!answer.ok || asked !== newest) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("shown");
    if (!fresh || asked !== newest) return;
    const shown = document.getElementById("shown");
    fresh.style.minHeight = shown.offsetHeight + "px"; // the page does not jump while its charts are drawn
    shown.replaceWith(fresh);
    document.dispatchEvent(new Event("charts"));
    form.elements.issued.value = time;
    window.history.replaceState(null, "", target);
  }

  function words() {
    const option = form.elements.issued.options[times.length - 1 - range.valueAsNumber];
    range.setAttribute("aria-valuetext", option ? option.textContent + " UTC" : "");
  }

  words();
  range.addEventListener("input", function moved() {
    words();
    show(times[range.valueAsNumber]);
  });
})();
