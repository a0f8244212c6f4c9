BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0009');
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
CREATE TABLE generations (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	history INTEGER NOT NULL, 
	pending JSON NOT NULL, 
	created FLOAT NOT NULL, asked INTEGER, budget INTEGER, 
	CONSTRAINT pk_generations PRIMARY KEY (id), 
	CONSTRAINT fk_generations_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT uq_generations_search_id_number UNIQUE (search_id, number)
);
CREATE TABLE intermediate_values (
	search_id INTEGER NOT NULL, 
	trial INTEGER NOT NULL, 
	fold INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	value FLOAT NOT NULL, look INTEGER, 
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
	metrics JSON, 
	error TEXT, 
	log_tail TEXT, 
	output TEXT, 
	node VARCHAR(128), 
	seconds FLOAT, 
	started FLOAT, 
	ended FLOAT, metadata JSON, figures JSON, joules FLOAT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT fk_jobs_task_id FOREIGN KEY(task_id) REFERENCES tasks (id), 
	CONSTRAINT uq_jobs_task_id_trial_fold_attempt UNIQUE (task_id, trial, fold, attempt)
);
CREATE TABLE leases (
	name VARCHAR(60) NOT NULL, 
	holder VARCHAR(32) NOT NULL, 
	mode VARCHAR(20) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	pid_started FLOAT NOT NULL, 
	expires FLOAT NOT NULL, server TEXT, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE searches (
	id INTEGER NOT NULL, 
	name VARCHAR(60) NOT NULL, 
	uid VARCHAR(8) NOT NULL, 
	owner VARCHAR(60) NOT NULL, 
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
	ended FLOAT, server TEXT, family VARCHAR(60), 
	CONSTRAINT pk_searches PRIMARY KEY (id), 
	CONSTRAINT uq_searches_name UNIQUE (name)
);
INSERT INTO "searches" VALUES(1,'demo','cafecafe','me','running','','{}','{}',1,'s',0,NULL,1.0,NULL,NULL,NULL,NULL,NULL);
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
	CONSTRAINT pk_tasks PRIMARY KEY (id), 
	CONSTRAINT fk_tasks_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT uq_tasks_name UNIQUE (name)
);
INSERT INTO "tasks" VALUES(1,1,1,0,'t/','submitted',NULL,'[[[1, 0, 7]], [[1, 1, 7]]]',1.0,NULL,NULL);
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	search_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	point JSON NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	seed INTEGER NOT NULL, 
	confirms INTEGER, 
	told INTEGER, 
	value FLOAT, 
	std FLOAT, 
	error TEXT, 
	submitted FLOAT, 
	started FLOAT, 
	ended FLOAT, stop_look INTEGER, stop_reason TEXT, stop_step BIGINT, stop_value FLOAT, projected JSON, figures JSON, spreads JSON, retries INTEGER, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT fk_trials_search_id FOREIGN KEY(search_id) REFERENCES searches (id), 
	CONSTRAINT uq_trials_search_id_number UNIQUE (search_id, number), 
	CONSTRAINT uq_trials_search_id_told UNIQUE (search_id, told)
);
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
CREATE INDEX ix_events_search_id_time ON events (search_id, time);
CREATE INDEX ix_tasks_search_id_state ON tasks (search_id, state);
CREATE INDEX ix_jobs_search_id_trial ON jobs (search_id, trial);
CREATE INDEX ix_wishes_search_id_trial ON wishes (search_id, trial);
COMMIT;
