/* The first process of every pod: holds its namespaces open, reaps orphans, ends on SIGTERM. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sign) { (void)sign; _exit(0); }

static void reap(int sign)
{
	(void)sign;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	/* PID 1 of a namespace ignores every signal without a handler */
	struct sigaction ends = {.sa_handler = end}, reaps = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	sigaction(SIGINT, &ends, NULL);
	sigaction(SIGTERM, &ends, NULL);
	sigaction(SIGCHLD, &reaps, NULL);
	for (;;)
		pause();
}
