// Draws every chart of the page from the specification that stands behind it, one after the other so that the page answers
// meanwhile; a chart in a closed fold is drawn when it is opened. `ast`: Vega interprets expressions instead of compiling them,
// as a Content-Security-Policy without 'unsafe-eval' asks for.
(() => {
  const config = JSON.parse(document.getElementById("chart-theme").textContent);
  const options = { config, mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
  const draw = (chart) => {
    if (chart.dataset.drawn) return Promise.resolve();
    chart.dataset.drawn = "yes";
    const spec = JSON.parse(chart.nextElementSibling.textContent);
    const { entry, labels } = spec.usermeta ?? {}; // widths, in pixels: a legend has as many columns as fit
    const columns = entry ? Math.max(1, Math.min(4, Math.floor((chart.clientWidth - labels) / entry))) : config.legend.columns;
    const own = { ...options, config: { ...config, legend: { ...config.legend, columns } } };
    return vegaEmbed(chart, spec, own).catch((error) => { chart.textContent = "This chart could not be drawn: " + error.message; });
  };
  const ready = () => [...document.querySelectorAll(".chart")].filter((chart) => !chart.dataset.drawn && !chart.closest("details:not([open])"));
  const next = () => { const chart = ready()[0]; if (chart) draw(chart).then(() => setTimeout(next)); };
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", next);
  document.addEventListener("charts", next); // charts were put into the page
  addEventListener("beforeprint", () => ready().forEach(draw));
  next();
})();
