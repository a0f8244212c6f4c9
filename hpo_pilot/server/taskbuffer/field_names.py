"""PanDA's names for the fields of jobs, files and tasks.

Sources, in panda-server 1.0.4: `pandaserver/taskbuffer/JobSpec.py`, `FileSpec.py` and `JediTaskSpec.py`.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Of a job's description.
JOB_FIELDS = _names(
    """
    PandaID jobDefinitionID schedulerID pilotID creationTime creationHost modificationTime modificationHost
    AtlasRelease transformation homepackage prodSeriesLabel prodSourceLabel prodUserID assignedPriority
    currentPriority attemptNr maxAttempt jobStatus jobName maxCpuCount maxCpuUnit maxDiskCount maxDiskUnit
    ipConnectivity minRamCount minRamUnit startTime endTime cpuConsumptionTime cpuConsumptionUnit commandToPilot
    transExitCode pilotErrorCode pilotErrorDiag exeErrorCode exeErrorDiag supErrorCode supErrorDiag ddmErrorCode
    ddmErrorDiag brokerageErrorCode brokerageErrorDiag jobDispatcherErrorCode jobDispatcherErrorDiag
    taskBufferErrorCode taskBufferErrorDiag computingSite computingElement jobParameters metadata prodDBlock
    dispatchDBlock destinationDBlock destinationSE nEvents grid cloud cpuConversion sourceSite destinationSite
    transferType taskID cmtConfig stateChangeTime prodDBUpdateTime lockedby relocationFlag jobExecutionID VO
    pilotTiming workingGroup processingType prodUserName nInputFiles countryGroup batchID parentID
    specialHandling jobsetID coreCount nInputDataFiles inputFileType inputFileProject inputFileBytes
    nOutputDataFiles outputFileBytes jobMetrics workQueue_ID jediTaskID jobSubStatus actualCoreCount reqID
    maxRSS maxVMEM maxSWAP maxPSS avgRSS avgVMEM avgSWAP avgPSS maxWalltime nucleus eventService failedAttempt
    hs06sec gshare hs06 totRCHAR totWCHAR totRBYTES totWBYTES rateRCHAR rateWCHAR rateRBYTES rateWBYTES
    resource_type diskIO memory_leak memory_leak_x2 container_name job_label gco2_regional gco2_global
    cpu_architecture_level outputFileType
    """
)

#: Of each of its files.
FILE_FIELDS = _names(
    """
    row_ID PandaID GUID lfn type dataset status prodDBlock prodDBlockToken dispatchDBlock dispatchDBlockToken
    destinationDBlock destinationDBlockToken destinationSE fsize md5sum checksum scope jediTaskID datasetID
    fileID attemptNr
    """
)

#: Those of a job that are 0 where nothing is known, not null.
ZERO_FIELDS = _names(
    """
    maxCpuCount maxDiskCount cpuConsumptionTime pilotErrorCode exeErrorCode supErrorCode ddmErrorCode
    brokerageErrorCode jobDispatcherErrorCode taskBufferErrorCode relocationFlag jobExecutionID jobDefinitionID
    outputFileBytes
    """
)

#: Of the answer to a pilot, about input files.
INPUT_FIELDS = _names(
    """
    inFiles dispatchDblock dispatchDBlockToken dispatchDBlockTokenForOut prodDBlocks prodDBlockToken
    realDatasetsIn GUID checksum fsize scopeIn ddmEndPointIn
    """
)

#: Of a task.
TASK_FIELDS = _names(
    """
    jediTaskID taskName status userName creationDate modificationTime startTime endTime frozenTime
    prodSourceLabel workingGroup vo coreCount taskType processingType taskPriority currentPriority architecture
    transUses transHome transPath lockedBy lockedTime termCondition splitRule walltime walltimeUnit outDiskCount
    outDiskUnit workDiskCount workDiskUnit ramCount ramUnit ioIntensity ioIntensityUnit workQueue_ID progress
    failureRate errorDialog reqID oldStatus cloud site countryGroup parent_tid eventService ticketID
    ticketSystemType stateChangeTime superStatus campaign mergeRamCount mergeRamUnit mergeWalltime
    mergeWalltimeUnit throttledTime numThrottled mergeCoreCount goal assessmentTime cpuTime cpuTimeUnit
    cpuEfficiency baseWalltime nucleus baseRamCount ttcRequested ttcPredicted ttcPredictionDate rescueTime
    requestType gshare resource_type useJumbo diskIO diskIOUnit memory_leak_core memory_leak_x2 attemptNr
    container_name framework activatedTime queuedTime actionTime
    """
)

#: Those of a task that its parameters hold under the same name.
TASK_FIELDS_FROM_PARAMETERS = _names(
    """
    workingGroup coreCount taskType processingType architecture transUses transHome transPath walltime
    walltimeUnit ramCount cloud countryGroup ticketID ticketSystemType campaign cpuTime cpuTimeUnit
    container_name framework goal
    """
)

#: Those of a task that lists show.
LISTED_TASK_FIELDS = _names(
    """
    jediTaskID modificationTime status processingType transUses transHome architecture reqID creationDate site
    cloud taskName
    """
)

#: Parameters that a retry or a resubmission may change: those of `insertTaskParamsPanda`, and what our jobs need.
CHANGEABLE_PARAMETERS = frozenset(
    _names(
        """
        site cloud includedSite excludedSite cliParams nFiles nEvents fixedSandbox sourceURL currentPriority
        taskPriority priority ramCount ramUnit ramCountUnit loopingCheck forceStaged maxAttempt coreCount maxWalltime
        """
    )
)

#: Split rules that may change while a task lives, by the tag under which calls name them (`task_split_rules.py`).
SPLIT_RULES = {
    "AI": "allowIncompleteInDS",
    "TW": "t1Weight",
    "EC": "nEsConsumers",
    "MF": "nMaxFilesPerJob",
    "NG": "nGBPerJob",
    "NI": "noInputPooling",
    "NF": "nFilesPerJob",
    "ES": "nEventsPerWorker",
    "NJ": "nJumboJobs",
    "AV": "avoidVP",
    "IL": "allowInputLAN",
    "LI": "useLocalIO",
    "LC": "noLoopingCheck",
    "CC": "maxCoreCount",
    "OT": "onlyTagsForFC",
    "UZ": "useZipToPin",
    "IM": "ignoreMissingInDS",
    "NP": "noAutoPause",
}
