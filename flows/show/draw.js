// Draws every chart of the page from the specification that stands behind it, one after the other so that the page answers
// meanwhile; a chart in a closed fold is drawn when it is opened. Vega interprets expressions instead of compiling them, as a
// Content-Security-Policy without 'unsafe-eval' asks for. A file carries specifications
// and Vega packed, as base64 of gzip.
(() => {
  const config = JSON.parse(document.getElementById("chart-theme").textContent);
  const packed = document.getElementById("charts");
  const unpack = () => {
    const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  const put = async (chart) => {
    const spec = chart.specification ?? JSON.parse(chart.nextElementSibling.textContent);
    const { entry, labels } = spec.usermeta ?? {}; // widths, in pixels: a legend has as many columns as fit
    const columns = entry ? Math.max(1, Math.min(4, Math.floor((chart.clientWidth - labels) / entry))) : config.legend.columns;
    const own = { ...config, legend: { ...config.legend, columns } };
    const made = vega.parse(vegaLite.compile(spec, { config: own }).spec, {}, { ast: true });
    await new vega.View(made, { container: chart, renderer: "svg", hover: true, expr: vega.expressionInterpreter }).runAsync();
  };
  const draw = (chart) => {
    if (chart.dataset.drawn) return Promise.resolve();
    chart.dataset.drawn = "yes";
    return put(chart).catch((error) => { chart.textContent = "This chart could not be drawn: " + error.message; });
  };
  const ready = () => [...document.querySelectorAll(".chart")].filter((chart) => !chart.dataset.drawn && !chart.closest("details:not([open])"));
  const next = () => { const chart = ready()[0]; if (chart) draw(chart).then(() => setTimeout(next)); };
  const start = () => {
    for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", next);
    document.addEventListener("charts", next); // charts were put into the page
    addEventListener("beforeprint", () => ready().forEach(draw));
    next();
  };
  if (!packed) return start();
  unpack().then(({ charts, vega }) => {
    document.querySelectorAll(".chart").forEach((chart, k) => { chart.specification = charts[k]; });
    const script = document.createElement("script");
    script.textContent = vega;
    document.head.append(script);
    start();
  }).catch((error) => {
    for (const chart of document.querySelectorAll(".chart")) chart.textContent = "The charts could not be drawn: " + error.message;
  });
})();
