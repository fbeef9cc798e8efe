/* A few threads that each do their part of one task after another. */

#ifndef PACELINE_WORKERS_H
#define PACELINE_WORKERS_H

typedef struct Workers Workers;

/* Does one part of a task, of so many. */
typedef void Task(void *what, int part, int parts);

/* Starts threads - 1 threads: the caller is one itself. NULL where that fails. */
Workers *workers_start(int threads);

void workers_stop(Workers *workers);

/* Returns once all parts are done; all that they wrote can be read. */
void workers_run(Workers *workers, Task *task, void *what);

#endif
