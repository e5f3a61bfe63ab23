/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a shared library and its functions. Symbols are all resolved before the first one is
 * stored, so that a table is either complete or untouched. */
#include "base/dynamic.h"

#include "base/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Opens the first library that can be opened; NULL: none can, and *reason_out says why. */
static void *open_first(const char *const *names, const char **reason_out)
{
	void *handle = NULL;
	for (size_t i = 0; names[i] != NULL && handle == NULL; i++)
		handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	const char *reason = handle == NULL ? dlerror() : NULL;
	*reason_out = reason != NULL ? reason : "";
	return handle;
}

static const char *missing_symbol(const struct semel_dynamic_library *library, void *handle)
{
	for (size_t i = 0; i < library->symbol_count; i++)
		if (dlsym(handle, library->symbols[i].name) == NULL)
			return library->symbols[i].name;
	return NULL;
}

semel_status semel_dynamic_load(const struct semel_dynamic_library *library, void *table,
				semel_error *error)
{
	const char *reason = NULL;
	void *handle = open_first(library->names, &reason);
	if (handle == NULL && strstr(reason, strerror(EMFILE)) != NULL)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "%s needs %s, and no more files can be opened (raise the "
				       "limit: ulimit -n)",
				       library->needed_for, library->names[0]);
	if (handle == NULL)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s needs %s, which is not installed (try: apt install %s)",
				       library->needed_for, library->names[0], library->package);

	const char *missing = missing_symbol(library, handle);
	if (missing != NULL) {
		dlclose(handle);
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s needs %s with the function %s: the installed version is "
				       "too old (try: apt install %s)",
				       library->needed_for, library->names[0], missing,
				       library->package);
	}

	for (size_t i = 0; i < library->symbol_count; i++) {
		void *symbol = dlsym(handle, library->symbols[i].name);
		/* ISO C has no cast from an object pointer to a function pointer; POSIX promises
		 * that their bytes are the same. */
		memcpy((char *)table + library->symbols[i].offset, &symbol, sizeof symbol);
	}
	return SEMEL_OK;
}

static semel_status load_and_begin(const struct semel_dynamic_library *library, void *table,
				   semel_error *error)
{
	semel_status status = semel_dynamic_load(library, table, error);

	if (status != SEMEL_OK)
		return status;
	return library->begin ? library->begin(table, error) : SEMEL_OK;
}

semel_status semel_dynamic_load_once(const struct semel_dynamic_library *library, void *table,
				     bool *loaded, semel_error *error)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&mutex);
	if (!*loaded) {
		status = load_and_begin(library, table, error);
		*loaded = status == SEMEL_OK;
	}
	pthread_mutex_unlock(&mutex);
	return status;
}
