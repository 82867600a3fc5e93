"use strict";
/* Lets the policy steer the vessels of one sea after the other, and the visitor interfere. */

const SPEEDS = [1, 2, 4, 8, 16, 32]; // times real time
const KINDS = ["vessels", "obstacles", "vortices"];
const REST_SECONDS = 2.5; // between two seas

/** An episode: the sea, the policy that steers it, and where its vessels have been. */
class Voyage {
  constructor(scenario) {
    this.scenario = scenario;
    this.sea = new Sea(scenario);
    this.trails = this.sea.vessels.map(({ x, y }) => [[x, y]]);
    this.before = this.poses();
  }

  /** Take a step: `act` of the policy, or rates that the visitor gives to a vessel by number. */
  advance(given = {}) {
    const actions = act(this.sea.observe(), this.sea.vessels.length);
    this.before = this.poses();
    this.sea.step(this.sea.vessels.map((_, i) => given[i] || actions.slice(2 * i, 2 * i + 2)));
    this.sea.vessels.forEach(({ x, y }, i) => {
      const [u, v] = this.trails[i].at(-1);
      if (u !== x || v !== y) this.trails[i].push([x, y]);
    });
  }

  poses() {
    return this.sea.vessels.map(({ x, y, heading }) => [x, y, heading]);
  }

  /** Poses at a share of the time between the last two steps. */
  posesAt(share) {
    return this.poses().map(([x, y, heading], i) => {
      const [u, v, old] = this.before[i];
      const turn = modulo(heading - old + Math.PI, TAU) - Math.PI;
      return [u + share * (x - u), v + share * (y - v), old + share * turn];
    });
  }

  get arrived() {
    return this.sea.vessels.filter((vessel) => vessel.reached).length;
  }

  get collided() {
    return this.sea.vessels.filter((vessel) => !vessel.active && !vessel.reached).length;
  }
}

class Page {
  constructor() {
    this.chart = new Chart(this.find("chart"));
    Object.assign(this, { number: -1, chosen: 0, tool: "obstacle", isPaused: false, keys: new Set(),
      share: 0, rest: 0, outcomes: [], last: null });
    this.find("about").textContent = SETTINGS.about;
    this.find("left-out").textContent = SETTINGS.leftOut;
    this.listen();
    this.next();
    requestAnimationFrame((now) => this.frame(now));
  }

  find(id) {
    return document.getElementById(id);
  }

  slider(kind) {
    return this.find(`count-${kind}`);
  }

  listen() {
    const on = (id, kind, action) => this.find(id).addEventListener(kind, action);
    on("pause", "click", () => this.pause());
    on("again", "click", () => this.open(this.voyage.scenario));
    on("next", "click", () => this.next());
    on("draw", "click", () => this.draw());
    on("chart", "pointerdown", (event) => this.touch(this.chart.place(event)));
    on("vessels", "pointerdown", ({ target }) => this.choose(target.closest("tr").sectionRowIndex));
    on("speed", "input", () => this.showSliders());
    KINDS.forEach((kind) => this.slider(kind).addEventListener("input", () => this.draw()));
    on("tools", "click", ({ target }) => {
      this.tool = target.dataset.tool || this.tool;
      this.find("tools").querySelectorAll("button").forEach((button) =>
        button.setAttribute("aria-pressed", button.dataset.tool === this.tool));
    });
    addEventListener("keydown", (event) => this.press(event));
    addEventListener("keyup", (event) => this.keys.delete(event.key));
    addEventListener("blur", () => this.keys.clear());
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow") && this.find("helm").checked) this.keys.add(event.key);
    else if (event.key === " ") this.pause();
    else if (event.key === "n") this.next();
    else if (event.key === "h") this.find("helm").checked = !this.find("helm").checked;
    else if (/^[1-8]$/.test(event.key)) this.choose(Number(event.key) - 1);
    else return;
    event.preventDefault();
  }

  pause() {
    this.isPaused = !this.isPaused;
    this.find("pause").textContent = this.isPaused ? "Sail on" : "Pause";
  }

  open(scenario) {
    this.voyage = new Voyage(scenario);
    this.chosen = Math.min(this.chosen, this.voyage.sea.vessels.length - 1);
    Object.assign(this, { share: 1, rest: 0 });
    for (const kind of KINDS) this.slider(kind).value = this.voyage.sea[kind].length;
    this.showSliders();
    this.showVessels();
  }

  /** Open the next of the seas that the environment drew. */
  next() {
    this.number = (this.number + 1) % SETTINGS.scenarios.length;
    this.open(SETTINGS.scenarios[this.number]);
  }

  /** Open a sea with the numbers of items that the sliders show. */
  draw() {
    this.open(drawScenario(
      Object.fromEntries(KINDS.map((kind) => [kind, Number(this.slider(kind).value)]))));
  }

  choose(number) {
    if (number >= this.voyage.sea.vessels.length) return;
    this.chosen = number;
    this.showVessels();
  }

  /** Choose the vessel at a place; or place, or remove, what the tool stands for. */
  touch([x, y]) {
    const { sea } = this.voyage;
    const near = (item, reach) => Math.hypot(item.x - x, item.y - y) <= reach;
    const vessel = sea.vessels.findIndex((each) => near(each, SETTINGS.vesselRadius));
    const removes = (items, reach) => {
      const found = items.findIndex((item) => near(item, reach));
      if (found >= 0) items.splice(found, 1);
      return found >= 0;
    };
    if (vessel >= 0) {
      this.choose(vessel);
    } else if (this.tool === "goal") {
      Object.assign(sea.vessels[this.chosen], { goal: [x, y] });
    } else if (this.tool === "obstacle") {
      const radius = SETTINGS.obstacleRadius;
      if (!removes(sea.obstacles, radius)) sea.obstacles.push({ x, y, radius });
    } else if (!removes(sea.vortices, 2)) {
      const side = sea.vortices.length % 2 ? -1 : 1;
      const { circulation, coreRadius: core } = SETTINGS;
      sea.vortices.push({ x, y, core, circulation: side * circulation });
    }
    sea.look();
  }

  /** Thrust rates by the arrow keys; without left or right both thrusts become equal again. */
  steer({ thrust: [left, right] }) {
    const held = (key) => Number(this.keys.has(key));
    const ahead = held("ArrowUp") - held("ArrowDown");
    const turn = held("ArrowRight") - held("ArrowLeft");
    const gain = SETTINGS.maxThrustRate * SETTINGS.stepSeconds;
    const even = turn ? 0 : clamp((right - left) / 2 / gain, -1, 1);
    return [ahead + even + turn / 2, ahead - even - turn / 2];
  }

  frame(now) {
    const seconds = this.last === null ? 0 : Math.min((now - this.last) / 1000, 0.1);
    this.last = now;
    const speed = SPEEDS[this.find("speed").value];
    if (!this.isPaused) this.sail(seconds, speed);
    const drift = this.isPaused ? 0 : seconds * Math.min(speed, 4);
    this.chart.draw(this.voyage, this.voyage.posesAt(Math.min(this.share, 1)), this.chosen, drift);
    requestAnimationFrame((later) => this.frame(later));
  }

  sail(seconds, speed) {
    const { voyage } = this;
    if (voyage.sea.isOver) {
      this.share = 1;
      if (this.rest === 0) {
        this.outcomes.push(voyage.arrived === voyage.sea.vessels.length);
        this.showVessels();
      }
      this.rest += seconds || 1e-3;
      if (this.rest > REST_SECONDS) this.next();
      return;
    }
    this.share += (seconds * speed) / SETTINGS.stepSeconds;
    for (; this.share >= 1 && !voyage.sea.isOver; this.share -= 1) {
      const vessel = voyage.sea.vessels[this.chosen];
      voyage.advance(this.find("helm").checked ? { [this.chosen]: this.steer(vessel) } : {});
      this.showVessels();
    }
  }

  showSliders() {
    document.querySelectorAll("label.slider").forEach((label) => {
      const slider = label.querySelector("input");
      label.querySelector("output").textContent =
        slider.id === "speed" ? `${SPEEDS[slider.value]} x` : slider.value;
    });
  }

  showVessels() {
    const { sea, arrived, collided } = this.voyage;
    const stateOf = (vessel) => (vessel.reached ? "arrived" : vessel.active ? "" : "collided");
    this.find("vessels").innerHTML = sea.vessels.map((vessel, i) => {
      const metres = Math.hypot(vessel.goal[0] - vessel.x, vessel.goal[1] - vessel.y);
      const cells = vessel.active
        ? [`${metres.toFixed(0)} m`, `${Math.hypot(...vessel.ground.slice(0, 2)).toFixed(1)} m/s`,
          vessel.thrust.map((thrust) => (thrust / 10).toFixed(0)).join(" ")]
        : ["", "", ""];
      return `<tr aria-selected="${i === this.chosen}"><td><i style="background: ${colourOf(i)}"></i>`
        + `${i + 1} ${stateOf(vessel)}</td>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`;
    }).join("");
    const clean = this.outcomes.filter(Boolean).length;
    const seconds = (sea.steps * SETTINGS.stepSeconds).toFixed(0);
    this.find("status").textContent = `${seconds} s: ${arrived} of ${sea.vessels.length} arrived`
      + `${collided ? `, ${collided} collided` : ""}`
      + `${this.outcomes.length ? `; all arrived in ${clean} of ${this.outcomes.length} seas` : ""}`;
  }
}

const page = new Page();
