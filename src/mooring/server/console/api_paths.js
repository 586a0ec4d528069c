// Paths of the admin API. A name is always encoded as one segment.

const e = encodeURIComponent;

export const overview = () => "/admin/overview";
export const services = () => "/admin/registry/services";
export const service = (name) => `${services()}/${e(name)}`;
export const explain = (name) => `${service(name)}/explain`;
export const serviceTimeline = (name) => `${service(name)}/timeline`;
export const brake = (name) => `/admin/registry/brakes/${e(name)}`;
export const instance = (name, id) => `${service(name)}/instances/${e(id)}`;
export const timeline = (name, id) => `${instance(name, id)}/timeline`;
export const history = (name, id) => `${instance(name, id)}/history`;
export const act = (name, id, what) => `${instance(name, id)}/${what}`;

export const tenants = () => "/admin/tenants";
export const tenant = (id) => `${tenants()}/${e(id)}`;
export const unmasked = (id) => `${tenant(id)}?unmask=true`;
export const tenantDiff = (id) => `${tenant(id)}/diff`;
export const tenantHistory = (id) => `${tenant(id)}/history`;
export const tenantVersion = (id, version) => `${tenantHistory(id)}/${e(version)}`;
export const tenantRollback = (id) => `${tenant(id)}/rollback`;

export const shared = (area) => `/admin/shared/${e(area)}`;
export const sharedUnmasked = (area) => `${shared(area)}?unmask=true`;
export const sharedValue = (area, key) => `${shared(area)}/values/${e(key)}`;
export const sharedDiff = (area, key) => `${sharedValue(area, key)}/diff`;
export const sharedHistory = (area) => `${shared(area)}/history`;
export const sharedVersion = (area, version) => `${sharedHistory(area)}/${e(version)}`;
export const sharedRollback = (area) => `${shared(area)}/rollback`;

export const locks = () => "/admin/locks";
export const release = (name, { lease, token }, reason) =>
  `${locks()}/${e(name)}?holder=${e(lease)}&token=${e(token)}&reason=${e(reason)}`;

export const search = (query) => `/admin/search?q=${e(query)}`;
export const tokens = () => "/admin/tokens";
export const token = (id) => `${tokens()}/${e(id)}`;
export const audit = () => "/admin/audit?limit=200";

/** Add the reason, unless it is empty. */
export const because = (path, reason) =>
  reason.trim() ? `${path}?reason=${e(reason.trim())}` : path;
