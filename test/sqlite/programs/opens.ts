// Opens a store in a directory, as another user if asked, and prints how that ended.
import { open } from '../../../src/open.ts'

const [url = '', directory = '.', user = '', how = ''] = process.argv.slice(2)
const other = 65_534
process.chdir(directory)
if (user !== '') process.setuid?.(other)
try {
  const holdfast = await open(url, { logger: false, readOnly: how === 'readOnly' })
  await holdfast.close()
  console.log(JSON.stringify({ code: 'opened', message: '' }))
} catch (error) {
  const { code, message } = error as { readonly code?: string; readonly message: string }
  console.log(JSON.stringify({ code: code ?? 'none', message }))
}
