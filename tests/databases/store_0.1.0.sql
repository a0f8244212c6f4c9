BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0016');
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
INSERT INTO "events" VALUES(1,1,1.79590526123132228852e+09,'root','submitted');
INSERT INTO "events" VALUES(2,1,1.79590526128762912748e+09,'service','running');
INSERT INTO "events" VALUES(3,1,1.79590526356681919094e+09,'service','done');
INSERT INTO "events" VALUES(4,2,1.79590526819444727896e+09,'root','submitted');
INSERT INTO "events" VALUES(5,2,1.79590526828263235097e+09,'service','running');
INSERT INTO "events" VALUES(6,2,1.79590526881626200671e+09,'service','trial 3 fold 0: trained from the start: there is no checkpoint of trial 2');
INSERT INTO "events" VALUES(7,2,1.79590526949936723707e+09,'service','trial 8 fold 0: trained from the start: there is no checkpoint of trial 6');
INSERT INTO "events" VALUES(8,2,1.79590526986589598661e+09,'service','trial 12 fold 0: trained from the start: there is no checkpoint of trial 7');
INSERT INTO "events" VALUES(9,2,1.79590527008590102194e+09,'service','trial 13 fold 0: trained from the start: there is no checkpoint of trial 10');
INSERT INTO "events" VALUES(10,2,1.79590527029847431186e+09,'service','trial 15 fold 0: trained from the start: there is no checkpoint of trial 14');
INSERT INTO "events" VALUES(11,2,1.79590527031071496011e+09,'service','done');
INSERT INTO "events" VALUES(12,1,1.79590527279982256885e+09,'root','note: a note; tags: kept');
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
INSERT INTO "generations" VALUES(1,1,1,0,'[]',2,6,1.79590526129133200641e+09);
INSERT INTO "generations" VALUES(2,1,2,1,'[2]',1,6,1.79590526194719696043e+09);
INSERT INTO "generations" VALUES(3,1,3,1,'[2, 3]',1,6,1.79590526197342753413e+09);
INSERT INTO "generations" VALUES(4,1,4,2,'[2, 4]',1,6,1.79590526219367790225e+09);
INSERT INTO "generations" VALUES(5,1,5,3,'[2, 5]',1,6,1.79590526244756102563e+09);
INSERT INTO "generations" VALUES(6,2,1,0,'[]',2,8,1.79590526829592180254e+09);
INSERT INTO "generations" VALUES(7,2,2,1,'[1]',NULL,NULL,1.7959052686794717312e+09);
INSERT INTO "generations" VALUES(8,2,3,1,'[1, 3]',1,8,1.79590526869368481634e+09);
INSERT INTO "generations" VALUES(9,2,4,2,'[1, 4]',NULL,NULL,1.79590526881861424447e+09);
INSERT INTO "generations" VALUES(10,2,5,3,'[1, 5]',1,8,1.79590526886035203933e+09);
INSERT INTO "generations" VALUES(11,2,6,4,'[5, 6]',1,8,1.79590526901597118377e+09);
INSERT INTO "generations" VALUES(12,2,7,6,'[7]',NULL,NULL,1.79590526903005671499e+09);
INSERT INTO "generations" VALUES(13,2,8,6,'[7, 8]',1,8,1.79590526905161857601e+09);
INSERT INTO "generations" VALUES(14,2,9,7,'[8, 9]',1,8,1.79590526942881584162e+09);
INSERT INTO "generations" VALUES(15,2,10,8,'[9, 10]',NULL,NULL,1.79590526950140714646e+09);
INSERT INTO "generations" VALUES(16,2,11,9,'[10, 11]',NULL,NULL,1.79590526968790817263e+09);
INSERT INTO "generations" VALUES(17,2,12,10,'[11, 12]',NULL,NULL,1.79590526975217747683e+09);
INSERT INTO "generations" VALUES(18,2,13,11,'[11, 13]',1,8,1.79590527004461693759e+09);
INSERT INTO "generations" VALUES(19,2,14,14,'[]',NULL,NULL,1.79590527020488095288e+09);
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
',NULL,'node',7.495594024658203125e-02,NULL,1.79590526166082859035e+09,1.79590526173578429224e+09);
INSERT INTO "jobs" VALUES(2,1,1,1,1,1,'finished',2,8.3169099166915472221e-01,NULL,'{}','null',NULL,'0.8316909916691547
',NULL,'node',1.129474639892578125e-01,NULL,1.79590526165996742244e+09,1.79590526177291464802e+09);
INSERT INTO "jobs" VALUES(3,1,1,2,0,1,'finished',3,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',8.8479518890380859375e-02,NULL,1.79590526180011153221e+09,1.79590526188859081263e+09);
INSERT INTO "jobs" VALUES(4,1,1,2,1,1,'finished',4,2.03110058955400324398e-01,NULL,'{}','null',NULL,'0.20311005895540032
',NULL,'node',1.00776195526123046875e-01,NULL,1.79590526183090472226e+09,1.79590526193168067928e+09);
INSERT INTO "jobs" VALUES(5,1,2,3,0,1,'finished',5,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',8.0708026885986328125e-02,NULL,1.79590526200438475607e+09,1.79590526208509254453e+09);
INSERT INTO "jobs" VALUES(6,1,2,3,1,1,'finished',6,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',0.0385136604309082,NULL,1.79590526200397014623e+09,1.79590526204248356815e+09);
INSERT INTO "jobs" VALUES(7,1,3,4,0,1,'finished',7,6.49193343899521629891e-02,NULL,'{}','null',NULL,'0.06491933438995216
',NULL,'node',1.36570692062377929687e-01,NULL,1.79590526222034263612e+09,1.79590526235691285133e+09);
INSERT INTO "jobs" VALUES(8,1,3,4,1,1,'finished',8,7.49193343899521579931e-02,NULL,'{}','null',NULL,'0.07491933438995216
',NULL,'node',1.3848400115966796875e-01,NULL,1.79590526221043181418e+09,1.79590526234891533852e+09);
INSERT INTO "jobs" VALUES(9,1,4,5,0,1,'finished',9,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',1.43602848052978515625e-01,NULL,1.7959052624213373661e+09,1795905262.56494);
INSERT INTO "jobs" VALUES(10,1,4,5,1,1,'finished',10,5.58528939925269418687e-01,NULL,'{}','null',NULL,'0.5585289399252694
',NULL,'node',6.27346038818359375e-02,NULL,1795905262.41719,1.79590526247992467883e+09);
INSERT INTO "jobs" VALUES(11,1,5,6,0,1,'finished',11,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',7.698917388916015625e-02,NULL,1.79590526250135278703e+09,1.79590526257834172244e+09);
INSERT INTO "jobs" VALUES(12,1,5,6,1,1,'finished',12,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',9.00471210479736328125e-02,NULL,1.79590526260496854788e+09,1.79590526269501543047e+09);
INSERT INTO "jobs" VALUES(13,2,6,1,0,1,'finished',13,8.21690991669154713328e-01,NULL,'{}','null',NULL,'0.8216909916691547
',NULL,'node',7.41856098175048828125e-02,NULL,1.79590526858081173892e+09,1.79590526865499711039e+09);
INSERT INTO "jobs" VALUES(14,2,6,2,0,1,'finished',14,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',9.15887355804443359375e-02,NULL,1.795905268520052433e+09,1.7959052686116409302e+09);
INSERT INTO "jobs" VALUES(15,2,7,3,0,1,'finished',15,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',6.36768341064453125e-02,NULL,1.79590526870391416552e+09,1.7959052687675907612e+09);
INSERT INTO "jobs" VALUES(16,2,8,4,0,1,'finished',16,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',8.617687225341796875e-02,NULL,1.79590526872079539301e+09,1.79590526880697178837e+09);
INSERT INTO "jobs" VALUES(17,2,9,5,0,1,'finished',17,1.93110058955400315516e-01,NULL,'{}','null',NULL,'0.19311005895540032
',NULL,'node',7.65006542205810546875e-02,NULL,1.79590526886520791055e+09,1.79590526894170832636e+09);
INSERT INTO "jobs" VALUES(18,2,10,6,0,1,'finished',18,6.49193343899521629891e-02,NULL,'{}','null',NULL,'0.06491933438995216
',NULL,'node',7.320308685302734375e-02,NULL,1.79590526890126132961e+09,1.79590526897446417812e+09);
INSERT INTO "jobs" VALUES(19,2,11,7,0,1,'finished',19,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',3.07201147079467773437e-01,NULL,1.79590526904428195954e+09,1.79590526935148286817e+09);
INSERT INTO "jobs" VALUES(20,2,12,8,0,1,'finished',20,6.49193343899521629891e-02,NULL,'{}','null',NULL,'0.06491933438995216
',NULL,'node',3.10792684555053710937e-01,NULL,1.79590526910483312605e+09,1.79590526941562557221e+09);
INSERT INTO "jobs" VALUES(21,2,13,9,0,1,'finished',21,NULL,NULL,'{}','null','the payload ended with exit code 1: x is too small','x is too small
',NULL,'node',1.70364141464233398437e-01,NULL,1.79590526942825698853e+09,1.7959052695986208915e+09);
INSERT INTO "jobs" VALUES(22,2,14,10,0,1,'finished',22,5.41499499677638662653e-01,NULL,'{}','null',NULL,'0.5414994996776387
',NULL,'node',1.47943258285522460937e-01,NULL,1.79590526948945784571e+09,1.79590526963740086553e+09);
INSERT INTO "jobs" VALUES(23,2,15,11,0,1,'finished',23,6.49193343899521629891e-02,NULL,'{}','null',NULL,'0.06491933438995216
',NULL,'node',2.172336578369140625e-01,NULL,1.79590526964637875557e+09,1.79590526986361241341e+09);
INSERT INTO "jobs" VALUES(24,2,16,12,0,1,'finished',24,5.48528939925269409805e-01,NULL,'{}','null',NULL,'0.5485289399252694
',NULL,'node',7.22115039825439453125e-02,NULL,1.79590526973406291013e+09,1.79590526980627393721e+09);
INSERT INTO "jobs" VALUES(25,2,17,13,0,1,'finished',25,5.41499499677638662653e-01,NULL,'{}','null',NULL,'0.5414994996776387
',NULL,'node',8.6644649505615234375e-02,NULL,1.79590526987254333495e+09,1.795905269959187746e+09);
INSERT INTO "jobs" VALUES(26,2,18,14,0,1,'finished',26,3.16823148219058103869e-01,NULL,'{}','null',NULL,'0.3168231482190581
',NULL,'node',8.637523651123046875e-02,NULL,1.79590527009342598913e+09,1.79590527017980098722e+09);
INSERT INTO "jobs" VALUES(27,2,19,15,0,1,'finished',27,3.16823148219058103869e-01,NULL,'{}','null',NULL,'0.3168231482190581
',NULL,'node',3.44183444976806640625e-02,NULL,1.7959052702294733524e+09,1.79590527026389145844e+09);
CREATE TABLE leases (
	id INTEGER NOT NULL, 
	holder VARCHAR(32) NOT NULL, 
	mode VARCHAR(20) NOT NULL, 
	server TEXT, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	pid_started FLOAT NOT NULL, 
	expires FLOAT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (id), 
	CONSTRAINT uq_leases_holder UNIQUE (holder)
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
INSERT INTO "notes" VALUES(1,0,'a note','["kept"]',1.79590527279921913141e+09);
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
INSERT INTO "progress" VALUES(1,1,0,0,4,2,0,0,0,0,4,4,4,6,5,0,1,0,0,0,6,4,3,NULL,NULL,1.14480924606323242187e+00,0.0,0.0,8.26690991669154717769e-01,6.99193343899521535522e-02,7.07106781186547187628e-03,NULL,NULL,'[]','[]','[[1, 0.8266909916691547], [3, 0.06991933438995215]]');
INSERT INTO "progress" VALUES(2,1,0,0,13,2,0,0,0,0,13,0,0,15,14,0,1,0,7,0,9,11,12,NULL,NULL,1.89851641654968261718e+00,0.0,0.0,1.93110058955400315516e-01,6.49193343899521629891e-02,NULL,NULL,NULL,'[]','[]','[[5, 0.19311005895540032], [12, 0.06491933438995216]]');
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
	holder VARCHAR(32), 
	held_since FLOAT, 
	CONSTRAINT pk_searches PRIMARY KEY (id), 
	CONSTRAINT uq_searches_name UNIQUE (name)
);
INSERT INTO "searches" VALUES(1,'folded','2819183c','root','embedded',NULL,'done','','{"search": "folded", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 6, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 2, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}','{"search": "folded", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 6, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 2, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}',1,'/recorded/folded.yaml',0,'/recorded/work/sandboxes/sources.4c1fa0f3b6ddab82e098e4c58c900a04bbaa4aa7f027986d71d28a124d225c73.tar.gz',1.79590526122284770008e+09,1.79590526128575968742e+09,1.79590526128575968742e+09,1.79590526356604099269e+09,'231b809328b63d7e',1.79590526124583864213e+09);
INSERT INTO "searches" VALUES(2,'levels','43de8699','root','embedded',NULL,'done','','{"search": "levels", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 8, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 1, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "fidelity": {"epochs": {"low": 1, "high": 4, "eta": 2}}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}','{"search": "levels", "objective": {"metric": "loss", "goal": "minimize"}, "space": {"x": {"when": {}, "type": "real", "low": 0.0, "high": 1.0, "scale": "linear", "step": null}, "kind": {"when": {}, "choices": ["a", "b"], "type": "categorical"}}, "constraints": [], "prior": {}, "start": [], "known": [], "warm_start": [], "optimizer": {"name": "random"}, "budget": {"trials": 8, "parallel": 2, "queued": "auto", "hours": null, "gpu_hours": null, "core_hours": null, "failures": 10, "refill": "auto"}, "confirm": {"top": 0, "repeats": 3}, "folds": {"k": 1, "require": null}, "seed": 1, "early_stopping": {"method": "none", "metric": null, "min_steps": null, "max_steps": null, "eta": null, "brackets": null, "warmup_steps": null, "warmup_trials": null, "folds": null, "report_seconds": null}, "fidelity": {"epochs": {"low": 1, "high": 4, "eta": 2}}, "payload": {"files": "training", "command": "python3 train.py", "function": null, "python": null, "container": null, "inputs": [], "outputs": [], "checkpoint": [], "result": {"file": null, "column": null, "stdout": "([\\d.e-]+)", "key": null}, "progress": null, "file_names": {"point": "input.json", "result": "output.json", "inputs": "input_ds.json", "metadata": null, "progress": "progress.jsonl", "metrics": null}, "point": {"fixed": {}, "arrays": {}, "values": {}}}, "resources": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": null, "cores": 1, "memory_mb": 500, "minutes": 5.0, "trials_per_job": 1}, "site": {"profile": "local", "queue": null, "exclude": [], "architecture": null}, "panda": {"label": "user", "vo": null, "working_group": null, "official": false, "priority": null, "attempts": 3, "jobs_per_task": "auto", "monitor": null}, "segments": null}',1,'/recorded/levels.yaml',0,'/recorded/work/sandboxes/sources.5a0abafdf675abe08b609002f46c4cfd030d67696b881ec0709e7e1b8f2fe5cd.tar.gz',1.79590526818610358235e+09,1.79590526828078556062e+09,1.79590526828078556062e+09,1.79590527030347490303e+09,'4af760560e524391',1.79590526820519900321e+09);
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
INSERT INTO "tasks" VALUES(1,1,1,0,'user.root.folded.2819183c.g1/','ended',1,'[[[1, 0, 312396423]], [[1, 1, 312396423]], [[2, 0, 1822214455]], [[2, 1, 1822214455]]]',1.79590526129133200641e+09,1.79590526143143320086e+09,1.79590526356481194501e+09,NULL);
INSERT INTO "tasks" VALUES(2,1,2,0,'user.root.folded.2819183c.g2/','ended',2,'[[[3, 0, 113215257]], [[3, 1, 113215257]]]',1.79590526194719696043e+09,1.79590526196801757814e+09,1.79590526217751622205e+09,NULL);
INSERT INTO "tasks" VALUES(3,1,3,0,'user.root.folded.2819183c.g3/','ended',3,'[[[4, 0, 2072365655]], [[4, 1, 2072365655]]]',1.79590526197342753413e+09,1.79590526200953602793e+09,1.79590526244504070279e+09,NULL);
INSERT INTO "tasks" VALUES(4,1,4,0,'user.root.folded.2819183c.g4/','ended',4,'[[[5, 0, 1589727557]], [[5, 1, 1589727557]]]',1.79590526219367790225e+09,1.79590526221130442618e+09,1.79590526261973547936e+09,NULL);
INSERT INTO "tasks" VALUES(5,1,5,0,'user.root.folded.2819183c.g5/','ended',5,'[[[6, 0, 1203938121]], [[6, 1, 1203938121]]]',1.79590526244756102563e+09,1.79590526245678234096e+09,1795905262.72952,NULL);
INSERT INTO "tasks" VALUES(6,2,1,0,'user.root.levels.43de8699.g1/','ended',6,'[[[1, 0, 312396423]], [[2, 0, 1822214455]]]',1.79590526829592180254e+09,1.79590526839146733288e+09,1.79590526899091148379e+09,NULL);
INSERT INTO "tasks" VALUES(7,2,2,0,'user.root.levels.43de8699.g2/','ended',7,'[[[3, 0, 1822214455]]]',1.7959052686794717312e+09,1.79590526869052529335e+09,1.7959052688101992607e+09,NULL);
INSERT INTO "tasks" VALUES(8,2,3,0,'user.root.levels.43de8699.g3/','ended',8,'[[[4, 0, 2072365655]]]',1.79590526869368481634e+09,1.79590526870793652531e+09,1.79590526885317182544e+09,NULL);
INSERT INTO "tasks" VALUES(9,2,4,0,'user.root.levels.43de8699.g4/','ended',9,'[[[5, 0, 1822214455]]]',1.79590526881861424447e+09,1795905268.84325,1.79590526900737905502e+09,NULL);
INSERT INTO "tasks" VALUES(10,2,5,0,'user.root.levels.43de8699.g5/','ended',10,'[[[6, 0, 1203938121]]]',1.79590526886035203933e+09,1.79590526887551140788e+09,1.79590526901475763324e+09,NULL);
INSERT INTO "tasks" VALUES(11,2,6,0,'user.root.levels.43de8699.g6/','ended',11,'[[[7, 0, 382781554]]]',1.79590526901597118377e+09,1.79590526902825713163e+09,1.79590526941961073879e+09,NULL);
INSERT INTO "tasks" VALUES(12,2,7,0,'user.root.levels.43de8699.g7/','ended',12,'[[[8, 0, 1203938121]]]',1.79590526903005671499e+09,1.79590526904874896998e+09,1.79590526949062633519e+09,NULL);
INSERT INTO "tasks" VALUES(13,2,8,0,'user.root.levels.43de8699.g8/','ended',13,'[[[9, 0, 1054845905]]]',1.79590526905161857601e+09,1.79590526906619524956e+09,1.79590526967388749123e+09,NULL);
INSERT INTO "tasks" VALUES(14,2,9,0,'user.root.levels.43de8699.g9/','ended',14,'[[[10, 0, 1320070664]]]',1.79590526942881584162e+09,1.79590526946167922022e+09,1.79590526974162983898e+09,NULL);
INSERT INTO "tasks" VALUES(15,2,10,0,'user.root.levels.43de8699.g10/','ended',15,'[[[11, 0, 1203938121]]]',1.79590526950140714646e+09,1.79590526953271389012e+09,1.79590527004329609866e+09,NULL);
INSERT INTO "tasks" VALUES(16,2,11,0,'user.root.levels.43de8699.g11/','ended',16,'[[[12, 0, 382781554]]]',1.79590526968790817263e+09,1.79590526971323299412e+09,1.79590526985883188254e+09,NULL);
INSERT INTO "tasks" VALUES(17,2,12,0,'user.root.levels.43de8699.g12/','ended',17,'[[[13, 0, 1320070664]]]',1.79590526975217747683e+09,1.79590526978335905073e+09,1.79590527008538937566e+09,NULL);
INSERT INTO "tasks" VALUES(18,2,13,0,'user.root.levels.43de8699.g13/','ended',18,'[[[14, 0, 854720314]]]',1.79590527004461693759e+09,1.7959052700672957897e+09,1.79590527020256304734e+09,NULL);
INSERT INTO "tasks" VALUES(19,2,14,0,'user.root.levels.43de8699.g14/','ended',19,'[[[15, 0, 854720314]]]',1.79590527020488095288e+09,1.79590527021327090264e+09,1.79590527029780530924e+09,NULL);
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
INSERT INTO "trials" VALUES(1,1,1,1,'{"x": 0.9064717269000477, "kind": "a"}','finished',312396423,NULL,NULL,1,8.26690991669154717769e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526129133200641e+09,1.79590526166082859035e+09,1.79590526191371798511e+09,NULL,NULL);
INSERT INTO "trials" VALUES(2,1,2,1,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,6,1.98110058955400319957e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526129133200641e+09,1.79590526180011153221e+09,1.79590526342222499842e+09,NULL,NULL);
INSERT INTO "trials" VALUES(3,1,3,2,'{"x": 0.08841827389941048, "kind": "b"}','failed',113215257,NULL,NULL,2,NULL,NULL,NULL,NULL,'0 of 2 folds good, 2 required: folds 0, 1: the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79590526194719696043e+09,1.79590526200438475607e+09,1.7959052621747369766e+09,NULL,NULL);
INSERT INTO "trials" VALUES(4,1,4,3,'{"x": 0.25479272829096233, "kind": "a"}','finished',2072365655,NULL,NULL,3,6.99193343899521535522e-02,7.07106781186547187628e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526197342753413e+09,1.79590526222034263612e+09,1.7959052624379589557e+09,NULL,NULL);
INSERT INTO "trials" VALUES(5,1,5,4,'{"x": 0.7406273961482045, "kind": "a"}','finished',1589727557,NULL,NULL,4,5.53528939925269414246e-01,7.07106781186548141726e-03,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526219367790225e+09,1795905262.41719,1.79590526261667299268e+09,NULL,NULL);
INSERT INTO "trials" VALUES(6,1,6,5,'{"x": 0.057973359448652895, "kind": "b"}','failed',1203938121,NULL,NULL,5,NULL,NULL,NULL,NULL,'0 of 2 folds good, 2 required: folds 0, 1: the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79590526244756102563e+09,1.79590526250135278703e+09,1.79590526272766900063e+09,NULL,NULL);
INSERT INTO "trials" VALUES(7,2,1,1,'{"x": 0.9064717269000477, "kind": "a"}','finished',312396423,NULL,NULL,4,8.21690991669154713328e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526829592180254e+09,1.79590526858081173892e+09,1.79590526898603892328e+09,1.0,NULL);
INSERT INTO "trials" VALUES(8,2,2,1,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,1,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526829592180254e+09,1.795905268520052433e+09,1.79590526866460394863e+09,1.0,NULL);
INSERT INTO "trials" VALUES(9,2,3,2,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,2,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.7959052686794717312e+09,1.79590526870391416552e+09,1.79590526880292201041e+09,2.0,2);
INSERT INTO "trials" VALUES(10,2,4,3,'{"x": 0.08841827389941048, "kind": "b"}','failed',2072365655,NULL,NULL,3,NULL,NULL,NULL,NULL,'the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79590526869368481634e+09,1.79590526872079539301e+09,1.79590526885122489931e+09,1.0,NULL);
INSERT INTO "trials" VALUES(11,2,5,4,'{"x": 0.4394428961257655, "kind": "a"}','finished',1822214455,NULL,NULL,5,1.93110058955400315516e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526881861424447e+09,1.79590526886520791055e+09,1.79590526900502395627e+09,4.0,3);
INSERT INTO "trials" VALUES(12,2,6,5,'{"x": 0.25479272829096233, "kind": "a"}','finished',1203938121,NULL,NULL,6,6.49193343899521629891e-02,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526886035203933e+09,1.79590526890126132961e+09,1795905269.01306,1.0,NULL);
INSERT INTO "trials" VALUES(13,2,7,6,'{"x": 0.7406273961482045, "kind": "a"}','finished',382781554,NULL,NULL,7,5.48528939925269409805e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526901597118377e+09,1.79590526904428195954e+09,1.79590526941385507583e+09,1.0,NULL);
INSERT INTO "trials" VALUES(14,2,8,7,'{"x": 0.25479272829096233, "kind": "a"}','finished',1203938121,NULL,NULL,8,6.49193343899521629891e-02,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526903005671499e+09,1.79590526910483312605e+09,1.79590526948864197733e+09,2.0,6);
INSERT INTO "trials" VALUES(15,2,9,8,'{"x": 0.057973359448652895, "kind": "b"}','failed',1054845905,NULL,NULL,9,NULL,NULL,NULL,NULL,'the payload ended with exit code 1: x is too small',NULL,NULL,NULL,NULL,NULL,1.79590526905161857601e+09,1.79590526942825698853e+09,1.79590526966428399085e+09,1.0,NULL);
INSERT INTO "trials" VALUES(16,2,10,9,'{"x": 0.7358664958249144, "kind": "b"}','finished',1320070664,NULL,NULL,10,5.41499499677638662653e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526942881584162e+09,1.79590526948945784571e+09,1.79590526973942708971e+09,1.0,NULL);
INSERT INTO "trials" VALUES(17,2,11,10,'{"x": 0.25479272829096233, "kind": "a"}','finished',1203938121,NULL,NULL,12,6.49193343899521629891e-02,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526950140714646e+09,1.79590526964637875557e+09,1795905270.02904,4.0,8);
INSERT INTO "trials" VALUES(18,2,12,11,'{"x": 0.7406273961482045, "kind": "a"}','finished',382781554,NULL,NULL,11,5.48528939925269409805e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526968790817263e+09,1.79590526973406291013e+09,1.79590526985628509519e+09,2.0,7);
INSERT INTO "trials" VALUES(19,2,13,12,'{"x": 0.7358664958249144, "kind": "b"}','finished',1320070664,NULL,NULL,13,5.41499499677638662653e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590526975217747683e+09,1.79590526987254333495e+09,1795905270.08332,2.0,10);
INSERT INTO "trials" VALUES(20,2,14,13,'{"x": 0.5628704542068789, "kind": "a"}','finished',854720314,NULL,NULL,14,3.16823148219058103869e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590527004461693759e+09,1.79590527009342598913e+09,1.79590527019969105719e+09,1.0,NULL);
INSERT INTO "trials" VALUES(21,2,15,14,'{"x": 0.5628704542068789, "kind": "a"}','finished',854720314,NULL,NULL,15,3.16823148219058103869e-01,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1.79590527020488095288e+09,1.7959052702294733524e+09,1.79590527029463195799e+09,2.0,14);
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
CREATE INDEX ix_trials_search_id_continues ON trials (search_id, continues) WHERE continues IS NOT NULL;
CREATE INDEX ix_trials_search_id_state ON trials (search_id, state);
CREATE INDEX ix_trials_search_id_ended ON trials (search_id, ended);
CREATE INDEX ix_wishes_search_id_trial ON wishes (search_id, trial);
CREATE INDEX ix_events_search_id_time ON events (search_id, time);
CREATE INDEX ix_jobs_search_id_trial ON jobs (search_id, trial);
COMMIT;
