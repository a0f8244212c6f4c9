BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0015');
CREATE TABLE earlier_results (
	search_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	results JSON NOT NULL, 
	notes JSON NOT NULL, 
	CONSTRAINT pk_earlier_results PRIMARY KEY (search_id, number), 
	CONSTRAINT fk_earlier_results_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	search_id INTEGER, 
	time FLOAT NOT NULL, 
	who VARCHAR(60) NOT NULL, 
	what TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
INSERT INTO "events" VALUES(1,1,1.79588958557415199275e+09,'root','submitted');
INSERT INTO "events" VALUES(2,1,1.79588958572111940387e+09,'service','running');
INSERT INTO "events" VALUES(3,1,1.79588958778685569761e+09,'service','done');
INSERT INTO "events" VALUES(4,2,1.79588960049866557117e+09,'root','submitted');
INSERT INTO "events" VALUES(5,2,1.79588960076175212861e+09,'service','running');
INSERT INTO "events" VALUES(6,2,1.79588960270538544657e+09,'service','trial 3 fold 0: trained from the start: there is no checkpoint of trial 2');
INSERT INTO "events" VALUES(7,2,1.79588960379172778124e+09,'service','trial 8 fold 0: trained from the start: there is no checkpoint of trial 6');
INSERT INTO "events" VALUES(8,2,1.79588960425686407088e+09,'service','trial 10 fold 0: trained from the start: there is no checkpoint of trial 5');
INSERT INTO "events" VALUES(9,2,1.79588960480466580389e+09,'service','trial 12 fold 0: trained from the start: there is no checkpoint of trial 9');
INSERT INTO "events" VALUES(10,2,1.79588960545441389082e+09,'service','trial 15 fold 0: trained from the start: there is no checkpoint of trial 13');
INSERT INTO "events" VALUES(11,2,1.79588960547046470645e+09,'service','done');
INSERT INTO "events" VALUES(12,1,1.79588961629026985173e+09,'root','note: a note; tags: kept');
CREATE TABLE generations (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	history INTEGER NOT NULL, 
	pending JSON NOT NULL, 
	asked INTEGER, 
	budget INTEGER, 
	created FLOAT NOT NULL, 
	CONSTRAINT pk_generations PRIMARY KEY (id), 
	CONSTRAINT uq_generations_search_id_number UNIQUE (search_id, number), 
	CONSTRAINT fk_generations_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
INSERT INTO "generations" VALUES(1,1,1,0,'[]',2,6,1.7958895857323060036e+09);
INSERT INTO "generations" VALUES(2,1,2,1,'[2]',1,6,1.79588958656772947316e+09);
INSERT INTO "generations" VALUES(3,1,3,1,'[2, 3]',1,6,1.79588958659831094744e+09);
INSERT INTO "generations" VALUES(4,1,4,2,'[2, 4]',1,6,1.79588958699552059174e+09);
INSERT INTO "generations" VALUES(5,1,5,3,'[4, 5]',1,6,1.7958895872557058335e+09);
INSERT INTO "generations" VALUES(6,2,1,0,'[]',2,8,1.79588960078838968275e+09);
INSERT INTO "generations" VALUES(7,2,2,2,'[]',NULL,NULL,1.79588960204953098295e+09);
INSERT INTO "generations" VALUES(8,2,3,2,'[3]',2,8,1.79588960209427785878e+09);
INSERT INTO "generations" VALUES(9,2,4,3,'[3, 5]',1,8,1.79588960270612812042e+09);
INSERT INTO "generations" VALUES(10,2,5,4,'[5, 6]',1,8,1.79588960276834082602e+09);
INSERT INTO "generations" VALUES(11,2,6,5,'[5, 7]',NULL,NULL,1.79588960328779768949e+09);
INSERT INTO "generations" VALUES(12,2,7,6,'[5, 8]',1,8,1.79588960345282888414e+09);
INSERT INTO "generations" VALUES(13,2,8,7,'[8, 9]',NULL,NULL,1.79588960351883554457e+09);
INSERT INTO "generations" VALUES(14,2,9,8,'[9, 10]',NULL,NULL,1.79588960379278612142e+09);
INSERT INTO "generations" VALUES(15,2,10,9,'[10, 11]',NULL,NULL,1.79588960402355718613e+09);
INSERT INTO "generations" VALUES(16,2,11,10,'[11, 12]',1,8,1.79588960474580168718e+09);
INSERT INTO "generations" VALUES(17,2,12,12,'[13]',NULL,NULL,1.79588960480535030366e+09);
INSERT INTO "generations" VALUES(18,2,13,13,'[14]',NULL,NULL,1.79588960505447363859e+09);
CREATE TABLE intermediate_values (
	search_id INTEGER NOT NULL, 
	trial INTEGER NOT NULL, 
	fold INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	value FLOAT NOT NULL, 
	look INTEGER, 
	CONSTRAINT pk_intermediate_values PRIMARY KEY (search_id, trial, fold, step), 
	CONSTRAINT fk_intermediate_values_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
CREATE TABLE jobs (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	trial INTEGER NOT NULL, 
	fold INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	panda_id BIGINT, 
	value FLOAT, 
	figures JSON, 
	metrics JSON, 
	metadata JSON, 
	error TEXT, 
	log_tail TEXT, 
	output TEXT, 
	node VARCHAR(128), 
	seconds FLOAT, 
	joules FLOAT, 
	started FLOAT, 
	ended FLOAT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_task_id_trial_fold_attempt UNIQUE (task_id, trial, fold, attempt), 
	CONSTRAINT fk_jobs_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT fk_jobs_task_id FOREIGN KEY(task_id) REFERENCES tasks (id)
);
INSERT INTO "jobs" VALUES(1,1,1,1,0,1,'finished',1,8.21690991669154713328e-01,NULL,'{}','null',NULL,'0.8216909916691547
',NULL,'node',1.3733196258544921875e-01,NULL,1.79588958628531074517e+09,1.79588958642264270781e+09);
INSERT INTO "jobs" VALUES(2,1,1,1,1,1,'finished',2,8.3169099166915472221e-01,NULL,'{}','null',NULL,'0.8316909916691547
',NULL,'node',1.546573638916015625e-01,NULL,1.79588958631854176523e+09,1.79588958647319889066e+09);
INSERT INTO "jobs" VALUES(3,1,1,2,0,1,'finished',3,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',1.633358001708984375e-01,NULL,1.79588958652161288266e+09,1.79588958668494844432e+09);
INSERT INTO "jobs" VALUES(4,1,1,2,1,1,'finished',4,2.03110058955400324398e-01,NULL,'{}','null',NULL,'0.20311005895540032
',NULL,'node',1.55498266220092773437e-01,NULL,1.7958895865954852104e+09,1.79588958675098323818e+09);
INSERT INTO "jobs" VALUES(5,1,2,3,0,1,'finished',5,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',1.54093027114868164062e-01,NULL,1.79588958675950884818e+09,1.79588958691360163683e+09);
INSERT INTO "jobs" VALUES(6,1,2,3,1,1,'finished',6,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',1.28434896469116210937e-01,NULL,1.79588958676848411567e+09,1.79588958689691877363e+09);
INSERT INTO "jobs" VALUES(7,1,3,4,0,1,'finished',7,6.49193343899521629891e-02,NULL,'{}','null',NULL,'0.06491933438995216
',NULL,'node',1.52240276336669921875e-01,NULL,1.79588958697140908243e+09,1.79588958712364912036e+09);
INSERT INTO "jobs" VALUES(8,1,3,4,1,1,'finished',8,7.49193343899521579931e-02,NULL,'{}','null',NULL,'0.07491933438995216
',NULL,'node',1.88751935958862304687e-01,NULL,1.79588958698586368561e+09,1.79588958717461538317e+09);
INSERT INTO "jobs" VALUES(9,1,4,5,0,1,'finished',9,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',1.70012950897216796875e-01,NULL,1.79588958720164394372e+09,1.79588958737165665631e+09);
INSERT INTO "jobs" VALUES(10,1,4,5,1,1,'finished',10,5.58528939925269418687e-01,NULL,'{}','null',NULL,'0.5585289399252694
',NULL,'node',2.22186803817749023437e-01,NULL,1.79588958724080896382e+09,1.79588958746299552919e+09);
INSERT INTO "jobs" VALUES(11,1,5,6,0,1,'finished',11,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',1.75146579742431640625e-01,NULL,1.79588958742961692809e+09,1.79588958760476350784e+09);
INSERT INTO "jobs" VALUES(12,1,5,6,1,1,'finished',12,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',6.93395137786865234375e-02,NULL,1.79588958751701354985e+09,1.79588958758635282514e+09);
INSERT INTO "jobs" VALUES(13,2,6,1,0,1,'finished',13,8.21690991669154713328e-01,NULL,'{}','null',NULL,'0.8216909916691547
',NULL,'node',2.78268098831176757812e-01,NULL,1.79588960166132187846e+09,1.79588960193958973882e+09);
INSERT INTO "jobs" VALUES(14,2,6,2,0,1,'finished',14,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',2.94174671173095703125e-01,NULL,1.79588960164153552058e+09,1.79588960193571019175e+09);
INSERT INTO "jobs" VALUES(15,2,7,3,0,1,'finished',15,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',3.33340406417846679687e-01,NULL,1.79588960217442226412e+09,1.79588960250776243209e+09);
INSERT INTO "jobs" VALUES(16,2,8,4,0,1,'finished',16,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',3.21211338043212890625e-01,NULL,1.79588960218829727169e+09,1.79588960250950837142e+09);
INSERT INTO "jobs" VALUES(17,2,8,5,0,1,'finished',17,0.305896359528727,NULL,'{}','null',NULL,'0.305896359528727
',NULL,'node',2.120494842529296875e-01,NULL,1.79588960261604642862e+09,1.79588960282809567453e+09);
INSERT INTO "jobs" VALUES(18,2,9,6,0,1,'finished',18,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',3.3025264739990234375e-01,NULL,1.79588960284964203831e+09,1.79588960317989468577e+09);
INSERT INTO "jobs" VALUES(19,2,10,7,0,1,'finished',19,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',2.79858350753784179687e-01,NULL,1.79588960294949293136e+09,1.79588960322935080535e+09);
INSERT INTO "jobs" VALUES(20,2,11,8,0,1,'finished',20,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',2.30370759963989257812e-01,NULL,1.79588960337371420861e+09,1.7958896036040847301e+09);
INSERT INTO "jobs" VALUES(21,2,12,9,0,1,'finished',21,5.41499499677638662653e-01,NULL,'{}','null',NULL,'0.5414994996776387
',NULL,'node',3.508758544921875e-01,NULL,1.79588960358137416837e+09,1795889603.93225);
INSERT INTO "jobs" VALUES(22,2,13,10,0,1,'finished',22,0.305896359528727,NULL,'{}','null',NULL,'0.305896359528727
',NULL,'node',3.25987339019775390625e-01,NULL,1.79588960376573514941e+09,1.79588960409172225e+09);
INSERT INTO "jobs" VALUES(23,2,14,11,0,1,'finished',23,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',3.40745449066162109375e-01,NULL,1.79588960410880804068e+09,1.79588960444955325125e+09);
INSERT INTO "jobs" VALUES(24,2,15,12,0,1,'finished',24,5.41499499677638662653e-01,NULL,'{}','null',NULL,'0.5414994996776387
',NULL,'node',0.361661434173584,NULL,1.79588960422999978066e+09,1.79588960459166121479e+09);
INSERT INTO "jobs" VALUES(25,2,16,13,0,1,'finished',25,3.16823148219058103869e-01,NULL,'{}','null',NULL,'0.3168231482190581
',NULL,'node',1.73495531082153320312e-01,NULL,1.79588960481004858015e+09,1.7958896049835438728e+09);
INSERT INTO "jobs" VALUES(26,2,17,14,0,1,'finished',26,0.305896359528727,NULL,'{}','null',NULL,'0.305896359528727
',NULL,'node',2.55238056182861328125e-01,NULL,1.79588960496066832542e+09,1.79588960521590638164e+09);
INSERT INTO "jobs" VALUES(27,2,18,15,0,1,'finished',27,3.16823148219058103869e-01,NULL,'{}','null',NULL,'0.3168231482190581
',NULL,'node',2.182674407958984375e-01,NULL,1.79588960515394902234e+09,1.79588960537221646314e+09);
CREATE TABLE leases (
	name VARCHAR(60) NOT NULL, 
	holder VARCHAR(32) NOT NULL, 
	mode VARCHAR(20) NOT NULL, 
	server TEXT, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	pid_started FLOAT NOT NULL, 
	expires FLOAT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE notes (
	search_id INTEGER NOT NULL, 
	trial INTEGER NOT NULL, 
	note TEXT NOT NULL, 
	tags JSON NOT NULL, 
	changed FLOAT NOT NULL, 
	CONSTRAINT pk_notes PRIMARY KEY (search_id, trial), 
	CONSTRAINT fk_notes_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
INSERT INTO "notes" VALUES(1,0,'a note','["kept"]',1.79588961628916430474e+09);
CREATE TABLE progress (
	search_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	pending INTEGER NOT NULL, 
	running INTEGER NOT NULL, 
	finished INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	stopped INTEGER NOT NULL, 
	stopped_early INTEGER NOT NULL, 
	confirmations INTEGER NOT NULL, 
	confirmations_over INTEGER NOT NULL, 
	good INTEGER NOT NULL, 
	with_std INTEGER NOT NULL, 
	with_spread INTEGER NOT NULL, 
	told INTEGER NOT NULL, 
	generations INTEGER NOT NULL, 
	failures_in_a_row INTEGER NOT NULL, 
	ties INTEGER NOT NULL, 
	confirmed_runs INTEGER NOT NULL, 
	continuations INTEGER NOT NULL, 
	infeasible INTEGER DEFAULT '0' NOT NULL, 
	last_failure INTEGER, 
	best INTEGER, 
	best_told INTEGER, 
	confirmed INTEGER, 
	confirmed_told INTEGER, 
	job_seconds FLOAT NOT NULL, 
	metered_seconds FLOAT NOT NULL, 
	joules FLOAT NOT NULL, 
	first_value FLOAT, 
	best_value FLOAT, 
	best_std FLOAT, 
	confirmed_value FLOAT, 
	hypervolume FLOAT, 
	front JSON NOT NULL, 
	reference JSON NOT NULL, 
	course JSON NOT NULL, 
	CONSTRAINT pk_progress PRIMARY KEY (search_id), 
	CONSTRAINT fk_progress_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
INSERT INTO "progress" VALUES(1,1,0,0,4,2,0,0,0,0,4,4,4,6,5,0,1,0,0,0,6,4,5,NULL,NULL,1.87102937698364257812e+00,0.0,0.0,8.26690991669154717769e-01,6.99193343899521535522e-02,7.07106781186547187628e-03,NULL,NULL,'[]','[]','[[1, 0.8266909916691547], [3, 0.19811005895540032], [5, 0.06991933438995215]]');
INSERT INTO "progress" VALUES(2,1,0,0,13,2,0,0,0,0,13,0,0,15,13,0,1,0,7,0,7,11,11,NULL,NULL,4.30579686164856,0.0,0.0,1.93110058955400315516e-01,1.93110058955400315516e-01,NULL,NULL,NULL,'[]','[]','[[11, 0.19311005895540032]]');
CREATE TABLE searches (
	id INTEGER NOT NULL, 
	name VARCHAR(60) NOT NULL, 
	uid VARCHAR(8) NOT NULL, 
	owner VARCHAR(60) NOT NULL, 
	server TEXT, 
	family VARCHAR(60), 
	state VARCHAR(20) NOT NULL, 
	message TEXT NOT NULL, 
	definition JSON NOT NULL, 
	filed JSON NOT NULL, 
	version INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	forgiven INTEGER NOT NULL, 
	sandbox TEXT, 
	created FLOAT NOT NULL, 
	started FLOAT, 
	clock FLOAT, 
	ended FLOAT, 
	CONSTRAINT pk_searches PRIMARY KEY (id), 
	CONSTRAINT uq_searches_name UNIQUE (name)
);
INSERT INTO "searches" VALUES(1,'folded','6be05745','root','embedded',NULL,'done','','{"search": "folded", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 6, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 2, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}','{"search": "folded", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 6, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 2, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}',1,'/recorded/folded.yaml',0,'/recorded/work/sandboxes/sources.4c1fa0f3b6ddab82e098e4c58c900a04bbaa4aa7f027986d71d28a124d225c73.tar.gz',1.7958895855713069439e+09,1.79588958571965312963e+09,1.79588958571965312963e+09,1.79588958778639578824e+09);
INSERT INTO "searches" VALUES(2,'levels','6c2412d1','root','embedded',NULL,'done','','{"search": "levels", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 8, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 1, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "fidelity": {"epochs": {"low": 1, "high": 4, "eta": 2}}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}','{"search": "levels", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 8, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 1, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "fidelity": {"epochs": {"low": 1, "high": 4, "eta": 2}}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}',1,'/recorded/levels.yaml',0,'/recorded/work/sandboxes/sources.5a0abafdf675abe08b609002f46c4cfd030d67696b881ec0709e7e1b8f2fe5cd.tar.gz',1.79588960049564790727e+09,1.79588960074673175812e+09,1.79588960074673175812e+09,1.79588960546947145465e+09);
CREATE TABLE tasks (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	revision INTEGER NOT NULL, 
	name VARCHAR(132) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	jedi_task_id BIGINT, 
	jobs JSON NOT NULL, 
	created FLOAT NOT NULL, 
	submitted FLOAT, 
	ended FLOAT, 
	waits TEXT, 
	CONSTRAINT pk_tasks PRIMARY KEY (id), 
	CONSTRAINT fk_tasks_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT uq_tasks_name UNIQUE (name)
);
INSERT INTO "tasks" VALUES(1,1,1,0,'user.root.folded.6be05745.g1/','ended',1,'[[[1, 0, 312396423]], [[1, 1, 312396423]], [[2, 0, 1822214455]], [[2, 1, 1822214455]]]',1.7958895857323060036e+09,1.79588958595453095437e+09,1.79588958725220394132e+09,NULL);
INSERT INTO "tasks" VALUES(2,1,2,0,'user.root.folded.6be05745.g2/','ended',2,'[[[3, 0, 113215257]], [[3, 1, 113215257]]]',1.79588958656772947316e+09,1.79588958659640192993e+09,1795889586.96228,NULL);
INSERT INTO "tasks" VALUES(3,1,3,0,'user.root.folded.6be05745.g3/','ended',3,'[[[4, 0, 2072365655]], [[4, 1, 2072365655]]]',1.79588958659831094744e+09,1.79588958663136816023e+09,1.79588958768188977242e+09,NULL);
INSERT INTO "tasks" VALUES(4,1,4,0,'user.root.folded.6be05745.g4/','ended',4,'[[[5, 0, 1589727557]], [[5, 1, 1589727557]]]',1.79588958699552059174e+09,1.79588958701751542088e+09,1.79588958778528952602e+09,NULL);
INSERT INTO "tasks" VALUES(5,1,5,0,'user.root.folded.6be05745.g5/','ended',5,'[[[6, 0, 1203938121]], [[6, 1, 1203938121]]]',1.7958895872557058335e+09,1.79588958727325320244e+09,1.79588958766633296007e+09,NULL);
INSERT INTO "tasks" VALUES(6,2,1,0,'user.root.levels.6c2412d1.g1/','ended',6,'[[[1, 0, 312396423]], [[2, 0, 1822214455]]]',1.79588960078838968275e+09,1.79588960098833298685e+09,1.79588960204553508758e+09,NULL);
INSERT INTO "tasks" VALUES(7,2,2,0,'user.root.levels.6c2412d1.g2/','ended',7,'[[[3, 0, 1822214455]]]',1.79588960204953098295e+09,1.79588960208026051515e+09,1.79588960270493078232e+09,NULL);
INSERT INTO "tasks" VALUES(8,2,3,0,'user.root.levels.6c2412d1.g3/','ended',8,'[[[4, 0, 2072365655]], [[5, 0, 1589727557]]]',1.79588960209427785878e+09,1.79588960212725472446e+09,1.79588960343887948985e+09,NULL);
INSERT INTO "tasks" VALUES(9,2,4,0,'user.root.levels.6c2412d1.g4/','ended',9,'[[[6, 0, 1203938121]]]',1.79588960270612812042e+09,1.79588960275336551671e+09,1.7958896032782292366e+09,NULL);
INSERT INTO "tasks" VALUES(10,2,5,0,'user.root.levels.6c2412d1.g5/','ended',10,'[[[7, 0, 382781554]]]',1.79588960276834082602e+09,1.79588960279488229748e+09,1.79588960338261342049e+09,NULL);
INSERT INTO "tasks" VALUES(11,2,6,0,'user.root.levels.6c2412d1.g6/','ended',11,'[[[8, 0, 1203938121]]]',1.79588960328779768949e+09,1.79588960332849049573e+09,1.79588960377869582174e+09,NULL);
INSERT INTO "tasks" VALUES(12,2,7,0,'user.root.levels.6c2412d1.g7/','ended',12,'[[[9, 0, 1054845905]]]',1.79588960345282888414e+09,1.79588960350164198874e+09,1.79588960402215814596e+09,NULL);
INSERT INTO "tasks" VALUES(13,2,8,0,'user.root.levels.6c2412d1.g8/','ended',13,'[[[10, 0, 1589727557]]]',1.79588960351883554457e+09,1.79588960355693268771e+09,1.79588960425640726094e+09,NULL);
INSERT INTO "tasks" VALUES(14,2,9,0,'user.root.levels.6c2412d1.g9/','ended',14,'[[[11, 0, 1822214455]]]',1.79588960379278612142e+09,1.7958896038149151802e+09,1.79588960474484968191e+09,NULL);
INSERT INTO "tasks" VALUES(15,2,10,0,'user.root.levels.6c2412d1.g10/','ended',15,'[[[12, 0, 1054845905]]]',1.79588960402355718613e+09,1.79588960407640147211e+09,1.79588960480423426627e+09,NULL);
INSERT INTO "tasks" VALUES(16,2,11,0,'user.root.levels.6c2412d1.g11/','ended',16,'[[[13, 0, 632338777]]]',1.79588960474580168718e+09,1.79588960477136254313e+09,1.79588960505326890944e+09,NULL);
INSERT INTO "tasks" VALUES(17,2,12,0,'user.root.levels.6c2412d1.g12/','ended',17,'[[[14, 0, 1589727557]]]',1.79588960480535030366e+09,1.79588960486318588256e+09,1.79588960532935357095e+09,NULL);
INSERT INTO "tasks" VALUES(18,2,13,0,'user.root.levels.6c2412d1.g13/','ended',18,'[[[15, 0, 632338777]]]',1.79588960505447363859e+09,1.79588960508956193922e+09,1.79588960545393252371e+09,NULL);
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	point JSON NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	seed INTEGER NOT NULL, 
	confirms INTEGER, 
	retries INTEGER, 
	told INTEGER, 
	value FLOAT, 
	std FLOAT, 
	figures JSON, 
	spreads JSON, 
	error TEXT, 
	stop_look INTEGER, 
	stop_reason TEXT, 
	stop_step BIGINT, 
	stop_value FLOAT, 
	projected JSON, 
	submitted FLOAT, 
	started FLOAT, 
	ended FLOAT, 
	level FLOAT, 
	continues INTEGER, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT uq_trials_search_id_number UNIQUE (search_id, number), 
	CONSTRAINT uq_trials_search_id_told UNIQUE (search_id, told), 
	CONSTRAINT fk_trials_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
INSERT INTO "trials" VALUES(1,1,1,1,'{"x": 0.9064717269000477, "kind": "a"}','finished',312396423,NULL,NULL,1,8.26690991669154717769e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.7958895857323060036e+09,1.79588958628531074517e+09,1.79588958654142904275e+09,NULL,NULL);
INSERT INTO "trials" VALUES(2,1,2,1,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,3,1.98110058955400319957e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.7958895857323060036e+09,1.79588958652161288266e+09,1.79588958724492192271e+09,NULL,NULL);
INSERT INTO "trials" VALUES(3,1,3,2,'{"x": 0.08841827389941048, "kind": "b"}','failed',113215257,NULL,NULL,2,NULL,NULL,NULL,NULL,'0 of 2 folds good, 2 required: folds 0, 1: the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79588958656772947316e+09,1.79588958675950884818e+09,1.79588958695974111557e+09,NULL,NULL);
INSERT INTO "trials" VALUES(4,1,4,3,'{"x": 0.25479272829096233, "kind": "a"}','finished',2072365655,NULL,NULL,5,6.99193343899521535522e-02,7.07106781186547187628e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588958659831094744e+09,1.79588958697140908243e+09,1795889587.67945,NULL,NULL);
INSERT INTO "trials" VALUES(5,1,5,4,'{"x": 0.7406273961482045, "kind": "a"}','finished',1589727557,NULL,NULL,6,5.53528939925269414246e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588958699552059174e+09,1.79588958720164394372e+09,1.79588958778324890141e+09,NULL,NULL);
INSERT INTO "trials" VALUES(6,1,6,5,'{"x": 0.057973359448652895, "kind": "b"}','failed',1203938121,NULL,NULL,4,NULL,NULL,NULL,NULL,'0 of 2 folds good, 2 required: folds 0, 1: the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.7958895872557058335e+09,1.79588958742961692809e+09,1.79588958766423511508e+09,NULL,NULL);
INSERT INTO "trials" VALUES(7,2,1,1,'{"x": 0.9064717269000477, "kind": "a"}','finished',312396423,NULL,NULL,1,8.21690991669154713328e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960078838968275e+09,1.79588960166132187846e+09,1.79588960204103398323e+09,1.0,NULL);
INSERT INTO "trials" VALUES(8,2,2,1,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,2,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960078838968275e+09,1.79588960164153552058e+09,1.79588960204103398323e+09,1.0,NULL);
INSERT INTO "trials" VALUES(9,2,3,2,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,4,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960204953098295e+09,1.79588960217442226412e+09,1.79588960269556808472e+09,2.0,2);
INSERT INTO "trials" VALUES(10,2,4,3,'{"x": 0.08841827389941048, "kind": "b"}','failed',2072365655,NULL,NULL,3,NULL,NULL,NULL,NULL,'the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79588960209427785878e+09,1.79588960218829727169e+09,1.79588960264209294322e+09,1.0,NULL);
INSERT INTO "trials" VALUES(11,2,5,3,'{"x": 0.5530789812754838, "kind": "a"}','finished',1589727557,NULL,NULL,7,0.305896359528727,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960209427785878e+09,1.79588960261604642862e+09,1.79588960343642401696e+09,1.0,NULL);
INSERT INTO "trials" VALUES(12,2,6,4,'{"x": 0.7406273961482045, "kind": "a"}','finished',1203938121,NULL,NULL,5,5.48528939925269409805e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960270612812042e+09,1.79588960284964203831e+09,1.79588960327601099018e+09,1.0,NULL);
INSERT INTO "trials" VALUES(13,2,7,5,'{"x": 0.057973359448652895, "kind": "b"}','failed',382781554,NULL,NULL,6,NULL,NULL,NULL,NULL,'the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79588960276834082602e+09,1.79588960294949293136e+09,1.79588960338041591646e+09,1.0,NULL);
INSERT INTO "trials" VALUES(14,2,8,6,'{"x": 0.7406273961482045, "kind": "a"}','finished',1203938121,NULL,NULL,8,5.48528939925269409805e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960328779768949e+09,1.79588960337371420861e+09,1.79588960377269911761e+09,2.0,6);
INSERT INTO "trials" VALUES(15,2,9,7,'{"x": 0.7358664958249144, "kind": "b"}','finished',1054845905,NULL,NULL,9,5.41499499677638662653e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960345282888414e+09,1.79588960358137416837e+09,1.79588960401281309128e+09,1.0,NULL);
INSERT INTO "trials" VALUES(16,2,10,8,'{"x": 0.5530789812754838, "kind": "a"}','finished',1589727557,NULL,NULL,10,0.305896359528727,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960351883554457e+09,1.79588960376573514941e+09,1.7958896042489550114e+09,2.0,5);
INSERT INTO "trials" VALUES(17,2,11,9,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,11,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960379278612142e+09,1.79588960410880804068e+09,1.79588960474328804012e+09,4.0,3);
INSERT INTO "trials" VALUES(18,2,12,10,'{"x": 0.7358664958249144, "kind": "b"}','finished',1054845905,NULL,NULL,12,5.41499499677638662653e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960402355718613e+09,1.79588960422999978066e+09,1.79588960480232310299e+09,2.0,9);
INSERT INTO "trials" VALUES(19,2,13,11,'{"x": 0.5628704542068789, "kind": "a"}','finished',632338777,NULL,NULL,13,3.16823148219058103869e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960474580168718e+09,1.79588960481004858015e+09,1.79588960505124807355e+09,1.0,NULL);
INSERT INTO "trials" VALUES(20,2,14,12,'{"x": 0.5530789812754838, "kind": "a"}','finished',1589727557,NULL,NULL,14,0.305896359528727,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960480535030366e+09,1.79588960496066832542e+09,1795889605.30952,4.0,10);
INSERT INTO "trials" VALUES(21,2,15,13,'{"x": 0.5628704542068789, "kind": "a"}','finished',632338777,NULL,NULL,15,3.16823148219058103869e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79588960505447363859e+09,1.79588960515394902234e+09,1.7958896054517409801e+09,2.0,13);
CREATE TABLE wishes (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	point JSON NOT NULL, 
	retries INTEGER, 
	who VARCHAR(60) NOT NULL, 
	"key" VARCHAR(64), 
	created FLOAT NOT NULL, 
	trial INTEGER, 
	CONSTRAINT pk_wishes PRIMARY KEY (id), 
	CONSTRAINT fk_wishes_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);
CREATE INDEX ix_tasks_search_id_state ON tasks (search_id, state);
CREATE INDEX ix_trials_search_id_state ON trials (search_id, state);
CREATE INDEX ix_trials_search_id_ended ON trials (search_id, ended);
CREATE INDEX ix_trials_search_id_continues ON trials (search_id, continues) WHERE continues IS NOT NULL;
CREATE INDEX ix_wishes_search_id_trial ON wishes (search_id, trial);
CREATE INDEX ix_events_search_id_time ON events (search_id, time);
CREATE INDEX ix_jobs_search_id_trial ON jobs (search_id, trial);
COMMIT;
