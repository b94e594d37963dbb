// One statistic of every head, layer by layer, at each moment of training: the same colours mean the same numbers.
"use strict";
(() => {
  const { $, read, stops, option, element, short, fill, shade, ink, onChange } = Page;
  const data = read("heads-data");
  if (!data) return;
  let chosen = null;

  function grid(moment, low, high) {
    const figure = document.createElement("figure");
    const name = moment.name ? `${moment.name}, ` : "";
    figure.append(element("figcaption", `${name}step ${moment.step.toLocaleString("en")}`));
    const sites = [...new Set(moment.rows.map((row) => row.site))];
    const heads = [...new Set(moment.rows.map((row) => row.head))].sort((a, b) => a - b);
    const several = new Set(sites.map((site) => moment.rows.find((row) => row.site === site).layer)).size < sites.length;
    const table = document.createElement("table");
    const top = table.createTHead().insertRow();
    top.append(element("th", ""), ...heads.map((head) => element("th", `h${head}`)));
    const body = table.createTBody();
    sites.forEach((site) => {
      const rows = moment.rows.filter((row) => row.site === site);
      const line = body.insertRow();
      const stack = several ? `${site.split(".")[0]} ${rows[0].kind} ` : "";
      line.append(element("th", `${stack}layer ${rows[0].layer}`));
      heads.forEach((head) => {
        const row = rows.find((each) => each.head === head);
        const value = row && row.numbers[chosen];
        const cell = line.insertCell();
        if (value === undefined) return;
        const colour = shade(stops("--ramp"), high > low ? (value - low) / (high - low) : 0);
        cell.textContent = value.toFixed(high - low < 0.1 ? 3 : Math.abs(high) < 10 ? 2 : 1);
        cell.style.background = `rgb(${colour.join(",")})`;
        cell.style.color = ink(colour);
        cell.title = `${site}, head ${head}: ${short(value)}`;
      });
    });
    const scroll = element("div", undefined, "scroll");
    scroll.append(table);
    figure.append(scroll);
    return figure;
  }

  function draw() {
    const names = Object.keys(data.statistics);
    chosen = fill($("pick-statistic"), names.map((name) => option(name, name.replace(/_/g, " "))), chosen);
    const values = data.moments.flatMap((moment) => moment.rows.map((row) => row.numbers[chosen]))
      .filter((value) => value !== undefined);
    const low = Math.min(...values);
    const high = Math.max(...values);
    const even = Object.values(data.chance).map((site) => site[chosen]).filter((value) => value !== undefined);
    const [least, most] = [Math.min(...even), Math.max(...even)];
    const same = short(least) === short(most);
    const parts = [data.statistics[chosen]];
    if (even.length) parts.push(`even weights would have ${same ? short(least) : `${short(least)} to ${short(most)}`}`);
    if (data.stability[chosen]) parts.push(`examples agree on the order of heads with rank correlation ${data.stability[chosen]}`);
    parts.push(`colours run from the least, ${short(low)}, to the largest, ${short(high)}`);
    const said = parts.filter((part) => part).join("; ");
    $("statistic-meaning").textContent = said && `${said.charAt(0).toUpperCase()}${said.slice(1)}.`;
    $("heads-grids").replaceChildren(...data.moments.map((moment) => grid(moment, low, high)));
  }

  $("pick-statistic").addEventListener("change", () => { chosen = $("pick-statistic").value; draw(); });
  $("heads-pickers").addEventListener("submit", (event) => event.preventDefault());
  draw();
  onChange(draw);
})();
