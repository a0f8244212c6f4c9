BEGIN TRANSACTION;
CREATE TABLE cache_files (
	name VARCHAR(255) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	size BIGINT NOT NULL, 
	checksum VARCHAR(64), 
	created FLOAT NOT NULL, 
	touched FLOAT NOT NULL, 
	CONSTRAINT pk_cache_files PRIMARY KEY (name)
);
CREATE TABLE harvesters (
	harvester_id VARCHAR(128) NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	host VARCHAR(128) NOT NULL, 
	reports TEXT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	CONSTRAINT pk_harvesters PRIMARY KEY (harvester_id)
);
CREATE TABLE job_documents (
	panda_id INTEGER NOT NULL, 
	meta_data TEXT, 
	output_report TEXT, 
	pilot_log TEXT, 
	stdout TEXT, 
	CONSTRAINT pk_job_documents PRIMARY KEY (panda_id)
);
CREATE TABLE jobs (
	panda_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	task_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	attempt_nr INTEGER NOT NULL, 
	max_attempt INTEGER NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	sub_status VARCHAR(80), 
	command VARCHAR(32), 
	debug BOOLEAN NOT NULL, 
	queue VARCHAR(128) NOT NULL, 
	label VARCHAR(32) NOT NULL, 
	priority INTEGER NOT NULL, 
	core_count INTEGER NOT NULL, 
	ram_mb INTEGER NOT NULL, 
	max_walltime INTEGER NOT NULL, 
	site VARCHAR(128), 
	computing_element VARCHAR(128), 
	node VARCHAR(128), 
	harvester_id VARCHAR(128), 
	worker_id VARCHAR(128), 
	scheduler_id VARCHAR(128), 
	holder VARCHAR(400), 
	holder_node VARCHAR(128), 
	holder_key VARCHAR(64), 
	pilot_id VARCHAR(200), 
	batch_id VARCHAR(80), 
	created FLOAT NOT NULL, 
	modified FLOAT NOT NULL, 
	state_changed FLOAT NOT NULL, 
	started FLOAT, 
	ended FLOAT, 
	heartbeat FLOAT, 
	patience FLOAT DEFAULT '0' NOT NULL, 
	job_metrics VARCHAR(500), 
	trans_exit_code INTEGER, 
	pilot_error_code INTEGER, 
	pilot_error_diag VARCHAR(500), 
	exe_error_code INTEGER, 
	exe_error_diag VARCHAR(500), 
	report TEXT, 
	dispatcher_error_code INTEGER, 
	dispatcher_error_diag VARCHAR(250), 
	buffer_error_code INTEGER, 
	buffer_error_diag VARCHAR(300)
);
INSERT INTO "jobs" VALUES(1,1,1,1,3,'activated',NULL,NULL,0,'LOCAL','user',1000,1,2000,600,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000000.0,1700000000.0,1700000000.0,NULL,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(2,1,2,1,3,'activated',NULL,NULL,0,'LOCAL','user',1000,1,2000,600,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000000.0,1700000000.0,1700000000.0,NULL,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE point_losses (
	task_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	loss FLOAT NOT NULL, 
	modified FLOAT NOT NULL, 
	CONSTRAINT pk_point_losses PRIMARY KEY (task_id, number)
);
CREATE TABLE secrets (
	user_name VARCHAR(128) NOT NULL, 
	data TEXT NOT NULL, 
	updated FLOAT NOT NULL, 
	CONSTRAINT pk_secrets PRIMARY KEY (user_name)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE tasks (
	task_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name TEXT NOT NULL, 
	user_name VARCHAR(128) NOT NULL, 
	vo VARCHAR(64) NOT NULL, 
	label VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	old_status VARCHAR(16), 
	error_dialog TEXT, 
	parent_id INTEGER, 
	priority INTEGER NOT NULL, 
	queue VARCHAR(128) NOT NULL, 
	included TEXT, 
	excluded TEXT, 
	campaign VARCHAR(256), 
	needs TEXT, 
	sandbox TEXT, 
	params TEXT NOT NULL, 
	revision INTEGER NOT NULL, 
	n_jobs INTEGER NOT NULL, 
	n_finished INTEGER NOT NULL, 
	n_failed INTEGER NOT NULL, 
	attempt_nr INTEGER DEFAULT '1' NOT NULL, 
	created FLOAT NOT NULL, 
	modified FLOAT NOT NULL, 
	state_changed FLOAT NOT NULL, 
	started FLOAT, 
	ended FLOAT, 
	change INTEGER NOT NULL, 
	outcome INTEGER NOT NULL
);
INSERT INTO "tasks" VALUES(1,'user.me.old/','me','hpo_pilot','user','running',NULL,NULL,NULL,1000,'LOCAL',NULL,NULL,'me/task/user.me.old/','{"architecture":"","container":false,"cores":1,"disk_mb":0,"gpus":0,"nodes":1,"payload_seconds":0,"ram_mb":2000,"seconds":600}',NULL,'{"taskName": "user.me.old/", "uniqueTaskName": true, "vo": "hpo_pilot", "userName": "me", "prodSourceLabel": "user", "processingType": "hpo-pilot", "site": "LOCAL", "architecture": "", "transUses": "", "transHome": null, "transPath": "http://127.0.0.1/trf/user/runGen-00-00-02", "noInput": true, "nEvents": 2, "nEventsPerJob": 1, "coreCount": 1, "ramCount": 2000, "hpoWalltime": 600, "skipScout": true, "log": {"dataset": "user.me.old.log/", "type": "template", "param_type": "log", "value": "user.me.old.log.$JEDITASKID.${SN}.log.tgz", "container": "user.me.old.log/"}, "jobParameters": [{"type": "constant", "value": "-j \"\" --sourceURL ${SURL}"}, {"type": "template", "value": "user.me.$JEDITASKID._${SN/P}.outputs.tar.gz", "param_type": "output", "dataset": "user.me.old_outputs/", "container": "user.me.old_outputs/", "hidden": true}, {"type": "constant", "value": "-o \"{''outputs.tar.gz'': ''user.me.$JEDITASKID._${SN/P}.outputs.tar.gz''}\""}, {"type": "constant", "value": "-p \"", "padding": false}, {"type": "constant", "value": "runner%20--number%20", "padding": false}, {"type": "template", "value": "${SEQNUMBER}", "param_type": "pseudo_input", "dataset": "seq_number", "offset": 0, "padding": false}, {"type": "constant", "value": "\""}], "maxAttempt": 3, "cliParams": "hpo-pilot run", "sourceURL": "http://127.0.0.1:1", "taskType": "anal", "taskPriority": 1000}',0,2,0,0,1,1700000000.0,1700000000.0,1700000000.0,NULL,NULL,2,0);
CREATE TABLE worker_node_gpus (
	site VARCHAR(128) NOT NULL, 
	host_name VARCHAR(128) NOT NULL, 
	vendor VARCHAR(128) NOT NULL, 
	model VARCHAR(128) NOT NULL, 
	description TEXT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	CONSTRAINT pk_worker_node_gpus PRIMARY KEY (site, host_name, vendor, model)
);
CREATE TABLE worker_nodes (
	site VARCHAR(128) NOT NULL, 
	host_name VARCHAR(128) NOT NULL, 
	cpu_model VARCHAR(128) NOT NULL, 
	description TEXT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	CONSTRAINT pk_worker_nodes PRIMARY KEY (site, host_name, cpu_model)
);
CREATE TABLE workers (
	harvester_id VARCHAR(128) NOT NULL, 
	worker_id VARCHAR(128) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	node_id VARCHAR(128), 
	started FLOAT, 
	ended FLOAT, 
	CONSTRAINT pk_workers PRIMARY KEY (harvester_id, worker_id)
);
CREATE INDEX ix_tasks_user_name_change ON tasks (user_name, change);
CREATE INDEX ix_tasks_pending ON tasks (sandbox) WHERE status = 'pending';
CREATE INDEX ix_tasks_user_name_outcome ON tasks (user_name, outcome);
CREATE INDEX ix_tasks_change ON tasks (change);
CREATE INDEX ix_tasks_user_name_name ON tasks (user_name, name);
CREATE INDEX ix_tasks_user_name_modified ON tasks (user_name, modified);
CREATE INDEX ix_tasks_ended ON tasks (ended);
CREATE INDEX ix_jobs_heartbeat ON jobs (heartbeat) WHERE status IN ('sent', 'starting', 'running', 'transferring', 'holding');
CREATE INDEX ix_jobs_waiting ON jobs (task_id, panda_id) WHERE status = 'activated';
CREATE INDEX ix_jobs_task_id_number ON jobs (task_id, number);
CREATE INDEX ix_jobs_worker ON jobs (harvester_id, worker_id) WHERE status IN ('sent', 'starting', 'running', 'transferring', 'holding');
CREATE INDEX ix_cache_files_user_name_size_checksum ON cache_files (user_name, size, checksum);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tasks',1);
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
COMMIT;
