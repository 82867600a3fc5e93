"use strict";
/* One sea of the environment, in float64: the arithmetic of physics.py, perception.py, sea.py and
 * colregs.py. x points north, y east, headings turn clockwise; SI units. `SETTINGS` holds the
 * constants of these modules, so that each has one source. */

const TAU = 2 * Math.PI;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const modulo = (value, divisor) => ((value % divisor) + divisor) % divisor;

/** Rotate a vector from the world frame to the body frame of heading cosine c and sine s. */
const toBody = (c, s, x, y) => [c * x + s * y, c * y - s * x];

/** Velocity of the water at a point, m/s. */
function current(x, y, vortices) {
  let [u, v] = [0, 0];
  for (const vortex of vortices) {
    const [dx, dy] = [vortex.x - x, vortex.y - y];
    // Gamma d / (2 pi r_c^2) inside the core, Gamma / (2 pi d) outside; divided by d
    const reach = Math.max(Math.sqrt(dx * dx + dy * dy), vortex.core);
    const speedByDistance = vortex.circulation / (TAU * reach * reach);
    u -= dy * speedByDistance;
    v += dx * speedByDistance;
  }
  return [u, v];
}

/** Move a vessel by one step with thrust rates of the left and right propeller, -1 to 1. */
function sail(vessel, rates, vortices) {
  const { minThrust, maxThrust, maxThrustRate, stepSeconds, substeps } = SETTINGS;
  const dt = stepSeconds / substeps;
  vessel.thrust = vessel.thrust.map((thrust, side) =>
    clamp(thrust + maxThrustRate * stepSeconds * clamp(rates[side], -1, 1), minThrust, maxThrust));
  const [left, right] = vessel.thrust;
  const push = left + right;
  const twist = 1.25 * (left - right);
  let { x, y, heading } = vessel;
  let [vx, vy, r] = vessel.velocity;
  for (let substep = 0; substep < substeps; substep++) {
    const [wx, wy] = current(x, y, vortices);
    const [gx, gy] = [vx + wx, vy + wy];
    vessel.ground = [gx, gy, r];
    x += dt * gx;
    y += dt * gy;
    heading += dt * r;
    const [c, s] = [Math.cos(heading), Math.sin(heading)];
    const [ur, vr] = toBody(c, s, vx, vy);
    const [u, v] = toBody(c, s, gx, gy);
    const surge = (400 * r * v - (100 + 150 * Math.abs(ur)) * ur + push) / 380;
    const sway = (-400 * r * u + 20 * ur * r - (100 + 150 * Math.abs(vr)) * vr) / 400;
    const yaw = (-20 * ur * vr - (980 + 950 * Math.abs(r)) * r + twist) / 1430;
    const [un, vn] = [ur + dt * surge, vr + dt * sway];
    [vx, vy, r] = [c * un - s * vn, s * un + c * vn, r + dt * yaw];
  }
  vessel.velocity = [vx, vy, r];
  Object.assign(vessel, { x, y, heading: modulo(heading, TAU) });
}

class Sea {
  /** @param scenario initial state in the format of `Scenario`, see scenario.py */
  constructor(scenario) {
    const { vortices, obstacles } = scenario;
    this.vortices = vortices.position.map(([x, y], i) => ({
      x, y, core: vortices.core_radius,
      circulation: (vortices.clockwise[i] ? 1 : -1) * vortices.circulation[i],
    }));
    this.obstacles = obstacles.position.map(([x, y], i) => ({ x, y, radius: obstacles.radius[i] }));
    this.vessels = scenario.start.map(([x, y], i) => {
      const velocity = scenario.velocity_r0[i];
      const [u, v] = current(x, y, this.vortices);
      return {
        x, y, heading: scenario.theta0[i], velocity: [...velocity],
        ground: [velocity[0] + u, velocity[1] + v, velocity[2]],
        thrust: [scenario.left_thrust0[i], scenario.right_thrust0[i]],
        goal: scenario.goal[i], active: true, reached: false,
      };
    });
    this.steps = 0;
    this.look();
  }

  get isOver() {
    return this.steps >= SETTINGS.maxSteps || !this.vessels.some((vessel) => vessel.active);
  }

  /** Let all active vessels act for one step; actions are pairs of thrust rates. */
  step(actions) {
    this.vessels.forEach((vessel, i) => vessel.active && sail(vessel, actions[i], this.vortices));
    this.steps += 1;
    // Vessels that collide or arrive in this step are still seen at its end.
    this.look();
    const touches = this.vessels.map((vessel) =>
      this.around(vessel).some((object) => object.clearance <= SETTINGS.vesselRadius));
    this.vessels.forEach((vessel, i) => {
      if (!vessel.active) return;
      const { goal: [x, y] } = vessel;
      const distance = Math.hypot(x - vessel.x, y - vessel.y);
      vessel.reached = !touches[i] && distance <= SETTINGS.goalRadius;
      vessel.active = !touches[i] && !vessel.reached;
    });
  }

  /** Renew the views of all vessels, also after a change from outside. */
  look() {
    this.views = this.vessels.map((vessel) => this.view(vessel));
  }

  /** Objects around a vessel in their order: other active vessels, then obstacles. */
  around(vessel) {
    const others = this.vessels.filter((other) => other !== vessel && other.active)
      .map((other) => ({ x: other.x, y: other.y, velocity: other.ground,
        radius: SETTINGS.vesselRadius }));
    const buoys = this.obstacles.map((buoy) => ({ ...buoy, velocity: [0, 0] }));
    return [...others, ...buoys].map((object) => {
      const [dx, dy] = [object.x - vessel.x, object.y - vessel.y];
      return { ...object, dx, dy, clearance: Math.sqrt(dx * dx + dy * dy) - object.radius };
    });
  }

  /** Own state of a vessel, and the nearest objects within its range, nearest first. */
  view(vessel) {
    const [c, s] = [Math.cos(vessel.heading), Math.sin(vessel.heading)];
    const seen = this.around(vessel)
      .filter((object) => object.clearance <= SETTINGS.sensingRange)
      .sort((one, other) => one.clearance - other.clearance)
      .slice(0, SETTINGS.maxObjects);
    const [gx, gy, yaw] = vessel.ground;
    return {
      own: [...toBody(c, s, vessel.goal[0] - vessel.x, vessel.goal[1] - vessel.y),
        ...toBody(c, s, gx, gy), yaw, ...vessel.thrust],
      objects: seen.map((object) => [...toBody(c, s, object.dx, object.dy),
        ...toBody(c, s, object.velocity[0], object.velocity[1]), object.radius]),
      seen,
    };
  }

  /** Observations of all vessels by name, as flat arrays in the units of the policy. */
  observe() {
    const [rows, places, wide] = [this.vessels.length, SETTINGS.maxObjects, 5];
    const observation = new Float64Array(rows * 7);
    const objects = new Float64Array(rows * places * wide);
    const mask = new Float64Array(rows * places);
    this.views.forEach((view, i) => {
      view.own.forEach((value, k) => { observation[i * 7 + k] = value / SETTINGS.ownUnits[k]; });
      view.objects.forEach((object, j) => {
        const start = (i * places + j) * wide;
        object.forEach((value, k) => { objects[start + k] = value / SETTINGS.objectUnits[k]; });
        mask[i * places + j] = 1;
      });
    });
    return { observation, objects, objects_mask: mask };
  }
}

/** Angle by which a vessel has to turn to starboard by the collision regulations, see colregs.py. */
function giveWayAngle(view) {
  const { minSpeed, safetyMargin, vesselRadius } = SETTINGS;
  const [, , ex, ey] = view.own;
  if (Math.hypot(ex, ey) < minSpeed) return 0;
  for (const [px, py, vx, vy, radius] of view.objects) {
    const speed = Math.hypot(vx, vy);
    const b = radius + safetyMargin;
    const squared = px * px + py * py - b * b;
    if (speed < minSpeed || squared < 0) continue;
    // the robot in the frame of the object's course
    const [c, s] = [vx / speed, vy / speed];
    const [x, y] = toBody(c, s, px, py).map((value) => -value);
    const [u, v] = toBody(c, s, ex, ey);
    const crossing = x >= -9 && x <= 12 && y >= -17 && y <= 0
      && y + 7 <= (-7 / 12) * (x - 12) && v >= Math.abs(u);
    const headOn = x >= 0 && x <= 17 && Math.abs(y) <= 4.5 && -u >= Math.abs(v);
    if (!crossing && !headOn) continue;
    const t = Math.sqrt(squared);
    const phi = Math.atan2(py, px) + Math.atan2(b, t) + Math.atan2(vesselRadius, t)
      - Math.atan2(ey, ex);
    const turn = modulo(phi + Math.PI, TAU) - Math.PI;
    if (turn > 0) return turn;
  }
  return 0;
}

/** Draw an initial state by the rules of placement.py, with as many items as find room. */
function drawScenario(counts, random = Math.random) {
  const { mapSize, robotArea, vortexArea, obstacleArea, clearances, circulation, coreRadius,
    obstacleRadius, minDistance, tries } = SETTINGS;
  const place = ([low, high]) => [0, 1].map(() => low + (high - low) * random());
  const apart = ([x, y], [u, v]) => Math.hypot(x - u, y - v);
  const [ends, whirls, buoys] = [[], [], []];
  const isClear = (point, clearance) => ends.every((pair) =>
    pair.every((end) => apart(point, end) > clearance));
  const fill = (items, count, draw, fits) => {
    for (let number = 0; number < tries && items.length < count; number++) {
      const item = draw();
      if (fits(item)) items.push(item);
    }
  };
  fill(ends, counts.vessels, () => [place(robotArea), place(robotArea)], ([start, goal]) =>
    apart(start, goal) >= minDistance && ends.every((pair) =>
      apart(start, pair[0]) > clearances.robot && apart(goal, pair[1]) > clearances.robot));
  fill(whirls, counts.vortices, () => [place(vortexArea), random() < 0.5], ([point, clockwise]) =>
    isClear(point, clearances.vortex)
    && point.every((value) => value >= coreRadius && value <= mapSize - coreRadius)
    && whirls.every(([other, alike]) => {
      const distance = apart(point, other);
      return clockwise === alike ? distance >= (2 * circulation) / (TAU * SETTINGS.boundarySpeed)
        : circulation / (TAU * (distance - 2 * coreRadius))
          <= (SETTINGS.jointSpeed * circulation) / (TAU * coreRadius);
    }));
  fill(buoys, counts.obstacles, () => place(obstacleArea), (point) =>
    isClear(point, clearances.obstacle)
    && buoys.every((other) => apart(point, other) >= 2 * obstacleRadius)
    && whirls.every(([other]) => apart(point, other) > coreRadius + obstacleRadius));
  return {
    start: ends.map(([start]) => start), goal: ends.map(([, goal]) => goal),
    theta0: ends.map(() => TAU * random()), velocity_r0: ends.map(() => [0, 0, 0]),
    left_thrust0: ends.map(() => 0), right_thrust0: ends.map(() => 0),
    vortices: {
      position: whirls.map(([point]) => point), clockwise: whirls.map(([, clockwise]) => clockwise),
      circulation: whirls.map(() => circulation), core_radius: coreRadius,
    },
    obstacles: { position: buoys, radius: buoys.map(() => obstacleRadius) },
  };
}
